# SPDX-License-Identifier: Apache-2.0
"""One learner at one site and the tasks it is asked to do; the same in a child process and in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from medflare.core.errors import MedflareError
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.egress.failures import SiteSettingsError
from medflare.federation.site.exact_comparison import ExactSide, Part
from medflare.federation.site.mixture_sums import ASKED, profile_specs, profile_sums, take_mixture
from medflare.federation.site.sketch import Asked, sketch_facts
from medflare.learners import build
from medflare.learners.client_terms import asked_sums
from medflare.wire import tensors as wire

Builder = Callable[[str, dict[str, Any], Any, int, Path | None], Learner]
LOCAL_STATE, RESIDUAL = "local_state.safetensors", "residual.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a worker needs before its first task; JSON types only.

    Attributes:
        site_file: the site's own site.yaml, or None for a learner that has no cohort.
        state_folder: where the local state survives restarts; the site's setting `state` goes before it.
        run_id: local state of another run is never restored.
        split: where every record belongs whose source names no split; None for the shares in site.yaml.
    """

    method: str
    settings: dict[str, Any]
    seed: int
    site: str
    site_file: str | None
    state_folder: str
    cache_folder: str
    run_id: str
    split: Literal["train", "val", "test"] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One task for a worker: plan and options in JSON types, tensors as received."""

    task: str
    plan: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker answers: JSON facts and tensors."""

    facts: dict[str, Any]
    tensors: State


def load_site_settings(opening: Opening) -> Any:
    """The site's settings; SiteSettingsError keeps what the file says at the site."""
    if opening.site_file is None:
        return None
    from medflare.data.load import SplitConfig, load_site

    try:
        site = load_site(Path(opening.site_file), opening.site)
    except MedflareError as error:
        raise SiteSettingsError(str(error)) from error
    if opening.split is None:
        return site
    whole = SplitConfig(**{"train": 0, "val": 0, "test": 0, opening.split: 1})
    return site.model_copy(
        update={"cohort": tuple(c.model_copy(update={"split": whole}) for c in site.cohort)}
    )


def state_folder(opening: Opening, site: Any) -> Path:
    """Where what never leaves survives a restart: the site's own choice, or the one FLARE's workspace has."""
    own = getattr(site, "state", None)
    return Path(own) / opening.run_id if own else Path(opening.state_folder)


def residual_file(opening: Opening) -> Path:
    """Where the site keeps what compression lost, beside its local state."""
    return state_folder(opening, load_site_settings(opening)) / RESIDUAL


class Session:
    """The learner of one run at one site, with the local state of earlier tasks put back."""

    def __init__(self, opening: Opening, builder: Builder = build) -> None:
        self.run_id, self.opening = opening.run_id, opening
        site = load_site_settings(opening)
        torch.set_num_threads(getattr(site, "threads", None) or 1)
        self.state_file = state_folder(opening, site) / LOCAL_STATE
        cache = Path(opening.cache_folder)
        self._build = lambda: builder(opening.method, opening.settings, site, opening.seed, cache)
        self._learner: Learner | None = None
        self._exact = ExactSide(state_folder(opening, site), opening.run_id)
        self.restored = False
        self._open()

    @property
    def learner(self) -> Learner:
        """The learner; after a failed round a new one, made only when the old one's memory is free again."""
        if self._learner is None:
            self._open()
        assert self._learner is not None
        return self._learner

    def _open(self) -> None:
        """A new learner with the local state of the last good round."""
        self._learner = self._build()
        self.restored = self._restore()

    def _restore(self) -> bool:
        """Puts back the local state of this run, if there is one."""
        if not self.state_file.exists():
            return False
        tensors, values = wire.load_tensors(self.state_file)
        if values["run_id"] != self.run_id:
            return False
        self.learner.load_local_state(tensors, values["learner"])
        return True

    def _save(self) -> None:
        tensors, values = self.learner.local_state()
        wire.save_tensors(self.state_file, tensors, {"run_id": self.run_id, "learner": values})

    def do(self, work: Work) -> Result:
        """Does one task; whatever it raises is the caller's to report."""
        started = time.monotonic()
        result = _TASKS[work.task](self, work)
        result.facts["seconds"] = round(time.monotonic() - started, 3)
        return result

    def prepare(self, work: Work) -> Result:
        """Facts before round 1. With `options.sites`, the sums this method will send among so many sites, and
        those that the rule asks for by `options.hints`; with `options.mixture`, the sums of profiles."""
        sums = self.learner.sums_spec(int(work.options["sites"]))
        sums = sums | asked_sums(self.learner, work.options.get("hints", {}))
        facts = {
            "describe": self.learner.describe(),
            "shared": wire.spec_to_json(self.learner.shared_spec()),
            "sums": wire.spec_to_json(sums),
        }
        if "mixture" in work.options:
            specs = profile_specs(self.learner, int(work.options["mixture"]["components"]))
            facts["profiles"] = {stage: wire.spec_to_json(spec) for stage, spec in specs.items()}
        return Result(facts, {})

    def sketch(self, work: Work) -> Result:
        """The sketch of the site's knowledge graph, from its files as they are now.

        `options.held`: site -> exchange from which the server has its sketch; the others as in `Asked`.
        """
        opening, site = self.opening, load_site_settings(self.opening)
        place, cache = state_folder(opening, site), Path(opening.cache_folder)
        said = work.options
        asked = Asked(int(said["exchange"]), said["held"].get(opening.site), float(said["growth"]))
        return Result(sketch_facts(site, place, cache, self.run_id, asked), {})

    def count(self, work: Work) -> Result:
        """How large the site's knowledge graph is. `options.partners`: the other sites of the run."""
        return Result(self._exact.count(load_site_settings(self.opening), work.options["partners"]), {})

    def offer(self, work: Work) -> Result:
        """Encrypted elements for `options.partner`; the others as in `Part`."""
        said, site = work.options, load_site_settings(self.opening)
        part = Part(str(said["partner"]), int(said["elements"]), bool(said["asks"]))
        message = self._exact.offer(site, said["partners"], part)
        return Result({"partner": part.partner, "examples": self._exact.texts()}, message)

    def answer(self, work: Work) -> Result:
        """The request of `options.partner`, encrypted a second time."""
        partner = str(work.options["partner"])
        message = self._exact.answer(partner, work.tensors)
        return Result({"partner": partner, "examples": self._exact.texts()}, message)

    def compare(self, work: Work) -> Result:
        """How many elements this site and `options.partner` share."""
        partner = str(work.options["partner"])
        shared = self._exact.compare(partner, work.tensors)
        return Result({"partner": partner, "examples": self._exact.texts(), "shared": shared}, {})

    def initialise(self, work: Work) -> Result:
        """The shared tensors before round 1."""
        return Result({}, self.learner.initial_shared())

    def fit(self, work: Work) -> Result:
        """One round of training, or the sums of profiles that its hints ask for in place of it.

        With `options.canary`, the local state is put back afterwards.
        """
        if ASKED in work.plan.get("hints", {}):
            sums, patients = profile_sums(self.learner, work.plan["hints"])
            return Result({"examples": patients, "metrics": {}}, wire.with_prefix(sums, wire.SUM))
        canary = bool(work.options.get("canary"))
        state, totals = wire.without_prefix(work.tensors, wire.TOTAL)
        if canary:
            tensors, values = self.learner.local_state()
            before = {name: value.detach().clone() for name, value in tensors.items()}
        self.learner.load_shared(state)
        try:
            update = self.learner.fit(self._plan(work, totals))
        except Exception:
            self._learner = None  # half a round must not stay in what never leaves
            raise
        if canary:
            self.learner.load_local_state(before, values)
        else:
            self._save()
        facts: dict[str, Any] = {"examples": update.examples, "metrics": update.metrics}
        if update.factor != 1:
            facts["factor"] = update.factor
        return Result(facts, {**update.delta, **wire.with_prefix(update.sums, wire.SUM)})

    def _plan(self, work: Work, totals: State) -> RoundPlan:
        """The plan; a mixture of profiles that came along is the learner's from here on."""
        plan = wire.plan_from_json(work.plan, totals)
        take_mixture(self.learner, plan.hints)
        return plan

    def evaluate(self, work: Work) -> Result:
        """Numbers on one split with the state that came along."""
        self.learner.load_shared(work.tensors)
        plan = self._plan(work, {})
        return Result({"metrics": self.learner.evaluate(str(work.options["split"]), plan)}, {})

    def finish(self, work: Work) -> Result:
        """Final numbers; the personalised adapter and the predictions stay in `options.folder`."""
        self.learner.load_shared(work.tensors)
        folder = Path(str(work.options["folder"]))
        folder.mkdir(parents=True, exist_ok=True)
        found = self.learner.finish(self._plan(work, {}), folder)
        return Result({"evaluations": [item.model_dump(mode="json") for item in found]}, {})


_TASKS: dict[str, Callable[[Session, Work], Result]] = {
    "prepare": Session.prepare,
    "sketch": Session.sketch,
    "count": Session.count,
    "offer": Session.offer,
    "answer": Session.answer,
    "compare": Session.compare,
    "initialise": Session.initialise,
    "fit": Session.fit,
    "evaluate": Session.evaluate,
    "finish": Session.finish,
}
