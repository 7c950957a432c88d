# SPDX-License-Identifier: Apache-2.0
"""One learner at one site and the tasks that it runs; the same in a child process and in a thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from medflare.core.hints import RoundHints
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.sample_drafts import keeping_drafts
from medflare.core.summed_metrics import exchange_specs
from medflare.core.tensor_names import TOTAL_PREFIX, split_by_prefix
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.data.settings.site import SiteConfig
from medflare.egress.permitted_facts import COUNTED, SPENT
from medflare.egress.policy import Policy
from medflare.learners.registry import build_learner
from medflare.learners.text_task.data_parallel import training_together
from medflare.wire.disk_space import DiskFullError, DiskReserve
from medflare.wire.durable import write_json
from medflare.wire.files import (
    DamagedFileError,
    load_before,
    load_newest,
    load_tensors,
    load_values,
    save_tensors,
)
from medflare.wire.first_values import FACT as FIRST_VALUES
from medflare.wire.first_values import describe_values
from medflare.wire.memory import free_bytes, peak_bytes, release_free_memory
from medflare.wire.plan_codec import plan_from_json
from medflare.wire.spec_codec import spec_to_json
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker import config as worker_config
from medflare.worker.config import LOCAL_STATE, WorkerConfig, state_folder
from medflare.worker.draft_file import write_drafts
from medflare.worker.exact_comparison import ExactSide, PairRequest
from medflare.worker.memory_check import require_memory
from medflare.worker.mixture_sums import profile_specs, profile_sums, take_mixture
from medflare.worker.patient_budget import PatientBudget
from medflare.worker.ranks import HelperRanks, require_several_devices, use_devices
from medflare.worker.sketch import SketchRequest, sketch_facts

Builder = Callable[[str, dict[str, Any], SiteConfig, int, Path | None], Learner]
"""(method, settings, site, seed, cache folder) -> learner: `learners.build`, or a test's own."""
LAST_UPDATE = "last_update.safetensors"
"""Beside the local state: the last update, with the work it answers."""
DRAFTS = 2
"""Samples that are kept of what a model writes in a validation."""
MEASURED, TESTED = "validation.jsonl", "evaluations.json"
"""A site's own numbers in the folder of its result, which stay there: of each validation, and of the test."""


class WorkerSession:
    """The learner of one run at one site, with the local state of earlier tasks restored.

    Args:
        config: of the worker; the site's settings are read from the file that it names.
        builder: makes the learner.
        rank: number of this process among the site's `devices`; all but 0 train beside it and write nothing.

    Raises:
        SiteSettingsError: the site's settings cannot be used.
        TooLittleMemoryError: a pretrained model cannot fit.
    """

    def __init__(self, config: WorkerConfig, builder: Builder = build_learner, rank: int = 0) -> None:
        self.run_id, self.config, self.rank = config.run_id, config, rank
        site = self._site_settings()
        self._devices = () if site.spread_layers else site.devices
        self._threads = site.threads
        self._helpers: HelperRanks | None = None
        if site.devices:
            require_several_devices(config.method, site.devices)
            mine = site.devices if site.spread_layers else site.devices[rank : rank + 1]
            site = site.model_copy(update={"device": use_devices(mine)})
        torch.set_num_threads(site.threads)
        self.state_file = state_folder(config, site) / LOCAL_STATE
        self.update_file = self.state_file.with_name(LAST_UPDATE)
        self._exchange = -1
        cache = Path(config.cache_folder)
        self._build = lambda: builder(config.method, config.settings, site, config.seed, cache)
        self._learner: Learner | None = None
        self._exact = ExactSide(state_folder(config, site), config.run_id)
        self.restored = False
        require_memory(config.method, config.settings, site)
        self._make_learner()

    @property
    def learner(self) -> Learner:
        """The learner; after a failed round a new one, made only when the old one's memory is free again."""
        if self._learner is None:
            self._make_learner()
        assert self._learner is not None
        return self._learner

    def run_task(self, request: TaskRequest) -> TaskResult:
        """Run one task and add its duration to the facts.

        Raises:
            Exception: whatever the task raises; the caller turns it into a failure that may leave the site.
        """
        answered = self._answered(request)
        if answered is not None:
            return answered
        started = time.monotonic()
        result = _TASKS[request.task](self, request)
        result.facts["seconds"] = round(time.monotonic() - started, 3)
        release_free_memory()  # other sites of a simulated run may be at work, and final tests start programs
        if request.work and _counts(request):
            facts = {"run_id": self.run_id, "work": request.work, "facts": result.facts}
            with suppress(DiskFullError):  # after a crash it is made again, from the local state before it
                save_tensors(self.update_file, result.tensors, facts)
        return result

    def _answered(self, request: TaskRequest) -> TaskResult | None:
        """Return the update that was made of the very same work before; its answer was lost on the way."""
        if not (request.work and _counts(request)):
            return None
        facts = load_values(self.update_file)
        if (facts.get("run_id"), facts.get("work")) != (self.run_id, request.work):
            return None
        try:
            tensors, facts = load_tensors(self.update_file)
        except DamagedFileError:  # made again from the local state of the exchange before
            return None
        return TaskResult(facts["facts"], tensors)

    def _site_settings(self) -> SiteConfig:
        """Return the site's settings as its file says now: a hospital may change it during a run."""
        return worker_config.load_site_settings(self.config)

    def _make_learner(self, before: int | None = None) -> None:
        """Make a learner with the local state of the last good exchange.

        Args:
            before: an exchange that is done once more, and must start as it did; None for the next one.
        """
        self._learner, self._exchange = None, -1  # the old one's memory is free before the new one takes its
        self._learner = self._build()
        self.restored = self._restore(before)

    def _restore(self, before: int | None) -> bool:
        """Load the local state of this run; return whether there was one.

        Where the disk damaged it, the state of the round before is taken: better than a site that is out for
        the rest of the run.
        """
        if before is None:
            saved = load_newest(self.state_file)
        else:
            saved = load_before(self.state_file, "exchange", before)
        if saved is None or saved[1]["run_id"] != self.run_id:
            return False
        self.learner.load_local_state(saved[0], saved[1]["learner"])
        self._exchange = int(saved[1].get("exchange", -1))
        return True

    def _save(self, exchange: int) -> None:
        """Write the local state after an exchange; it never leaves the site.

        The state before it stays: an exchange whose answer was lost in a crash starts from there again. On a
        full disk it is written into the space kept for it.
        """
        if self.rank:
            self._exchange = exchange
            return
        tensors, values = self.learner.local_state()
        facts = {"run_id": self.run_id, "learner": values, "exchange": exchange}
        again = load_values(self.state_file).get("exchange", -1) >= exchange
        try:
            save_tensors(self.state_file, tensors, facts, keep_previous=not again)
        except DiskFullError:
            reserve = DiskReserve(self.state_file.parent)
            if not reserve.file.exists():
                raise
            reserve.release()
            save_tensors(self.state_file, tensors, facts, keep_previous=not again)
        self._exchange = exchange

    def prepare(self, request: TaskRequest) -> TaskResult:
        """Return the facts before round 1: the learner's description and the tensors that it declares.

        `options.sites`: number of sites, on which the shapes of the sums depend; `options.hints`: what the
        rule asks of local training; `options.mixture`: the settings of the mixture of profiles, whose sums
        are declared too; `options.sums_of_metrics`: whether those of what is measured are; `options.uplink`:
        how first values would travel, empty once the site has received a state, when its tensors are what it
        has learned.
        """
        self._budget().check(self.learner.patient_privacy)
        sums = self.learner.sums_spec(int(request.options["sites"]))
        sums = sums | self.learner.requested_sums(RoundHints.from_json(request.options.get("hints", {})))
        separate: dict[str, SharedSpec] = {}
        if "mixture" in request.options:
            separate |= profile_specs(self.learner, int(request.options["mixture"]["components"]))
        if request.options.get("sums_of_metrics"):
            separate |= exchange_specs(self.learner.metric_names())
        facts = {
            "describe": self.learner.describe().to_json(),
            "shared": spec_to_json(self.learner.shared_spec()),
            "sums": spec_to_json(sums),
            "separate_sums": {exchange: spec_to_json(spec) for exchange, spec in separate.items()},
        }
        if request.options.get("uplink"):
            facts[FIRST_VALUES] = describe_values(self.learner.initial_shared(), request.options["uplink"])
        return TaskResult(facts, {})

    def sketch(self, request: TaskRequest) -> TaskResult:
        """Return the sketch of the site's knowledge graph, from its files as they are now.

        `options.held`: site -> exchange from which the server has its sketch; the others as in
        `SketchRequest`.
        """
        site, options = self._site_settings(), request.options
        folder, cache = state_folder(self.config, site), Path(self.config.cache_folder)
        held = options["held"].get(self.config.site)
        sketch = SketchRequest(int(options["exchange"]), held, float(options["growth"]))
        return TaskResult(sketch_facts(site, folder, cache, self.run_id, sketch), {})

    def count(self, request: TaskRequest) -> TaskResult:
        """Return the size of the site's knowledge graph. `options.partners`: the other sites of the run."""
        return TaskResult(self._exact.count(self._site_settings(), request.options["partners"]), {})

    def offer(self, request: TaskRequest) -> TaskResult:
        """Return encrypted elements for `options.partner`; the others `elements` and `asks` as in
        `PairRequest`."""
        options = request.options
        pair = PairRequest(str(options["partner"]), int(options["elements"]), bool(options["asks"]))
        message = self._exact.offer(self._site_settings(), options["partners"], pair)
        return TaskResult({"partner": pair.partner, "examples": self._exact.texts()}, message)

    def answer(self, request: TaskRequest) -> TaskResult:
        """Return the request of `options.partner`, encrypted a second time."""
        partner = str(request.options["partner"])
        message = self._exact.answer(partner, request.tensors)
        return TaskResult({"partner": partner, "examples": self._exact.texts()}, message)

    def compare(self, request: TaskRequest) -> TaskResult:
        """Return how many elements this site and `options.partner` share."""
        partner = str(request.options["partner"])
        shared = self._exact.compare(partner, request.tensors)
        return TaskResult({"partner": partner, "examples": self._exact.texts(), "shared": shared}, {})

    def initialise(self, request: TaskRequest) -> TaskResult:
        """Return the shared tensors before round 1."""
        return TaskResult({}, self.learner.initial_shared())

    def fit(self, request: TaskRequest) -> TaskResult:
        """Train for one round, or return the sums of profiles that the hints ask for in place of it.

        With `options.canary`, the local state is put back afterwards: the update counts nowhere, so the site
        must be as if it had never trained.
        """
        hints = RoundHints.from_json(request.plan.get("hints", {}))
        if hints.profiles is not None:
            sums, patients = profile_sums(self.learner, hints, int(request.plan["round"]))
            return _as_result(Update(delta={}, examples=patients, sums=sums))
        canary = bool(request.options.get("canary"))
        state, totals = split_by_prefix(request.tensors, TOTAL_PREFIX)
        exchange = int(request.plan["round"])
        if not canary and self._exchange >= exchange:
            self._make_learner(before=exchange)
        if canary:
            tensors, values = self.learner.local_state()
            before = {name: value.detach().clone() for name, value in tensors.items()}
        self.learner.load_shared(state)
        plan = self._plan(request, totals)
        spent = self._charge(plan, canary)
        try:
            if not spent:  # a private step is made on one device: its sample is one batch
                self._begin_helpers(request)
            with training_together(bool(self.rank) or self._helpers is not None):
                update = self.learner.fit(plan)
            if not canary:
                self._save(exchange)
        except Exception:
            self._learner = None  # half a round must not stay in what never leaves
            self._end_helpers()
            raise
        if canary:
            self.learner.load_local_state(before, values)
            update.metrics.update(_memory())
        if spent:
            update.metrics |= {"epsilon": spent["run"], "delta": spent["delta"]}
        result = _as_result(update)
        return TaskResult({**result.facts, SPENT: spent}, result.tensors) if spent else result

    def _budget(self) -> PatientBudget:
        """Return the privacy budget under the rules in force now."""
        policy = Policy(rules=self._site_settings().policy, file=Path(self.config.site_file))
        return PatientBudget(policy, worker_config.privacy_folder(self.config), self.run_id)

    def _charge(self, plan: RoundPlan, canary: bool) -> dict[str, Any]:
        """Count what a round spends of the patients' privacy before it trains, a canary's too; empty where it
        is not private.

        Raises:
            PolicyError: the hospital's budget does not allow it.
        """
        privacy, budget = self.learner.patient_privacy, self._budget()
        if privacy is None:
            budget.check(None)
            return {}
        return budget.charge(privacy, plan, alone=canary or self._exchange >= 0)

    def _begin_helpers(self, request: TaskRequest) -> None:
        """Let the processes of the site's other devices train on the same request, started where needed."""
        if self.rank or len(self._devices) < 2:
            return
        if self._helpers is None:
            self._helpers = HelperRanks(self.config, self._devices, self._threads)
        self._helpers.train(request)

    def _end_helpers(self) -> None:
        """End what trained beside this process in a round that failed.

        Raises:
            RunError: one of them had ended by itself, which is why the round failed.
        """
        helpers, self._helpers = self._helpers, None
        if helpers is not None:
            try:
                helpers.require_all()
            finally:
                helpers.close()

    def close(self) -> None:
        """End the processes of the site's other devices."""
        if self._helpers is not None:
            self._helpers.close()
            self._helpers = None

    def _plan(self, request: TaskRequest, totals: State) -> RoundPlan:
        """Return the plan, after giving the learner the mixture of profiles that came along, if one did."""
        plan = plan_from_json(request.plan, totals)
        take_mixture(self.learner, plan.hints)
        return plan

    def evaluate(self, request: TaskRequest) -> TaskResult:
        """Return numbers on `options.split` with the state that came along.

        With `options.folder` they are written there too: what leaves is a sum, of which nobody here could
        read the site's own part. With `options.drafts`, some of what the model wrote for it is.
        """
        self.learner.load_shared(request.tensors)
        plan, split = self._plan(request, {}), str(request.options["split"])
        with keeping_drafts(DRAFTS) as drafts:
            metrics = self.learner.evaluate(split, plan)
        if "drafts" in request.options:
            write_drafts(Path(str(request.options["drafts"])), plan.round, drafts)
        if "folder" in request.options:
            line = {"round": plan.round, "split": split, "examples": metrics.examples, "metrics": metrics}
            _append_line(Path(str(request.options["folder"])) / MEASURED, line)
        return TaskResult({"metrics": dict(metrics), COUNTED: metrics.examples}, {})

    def finish(self, request: TaskRequest) -> TaskResult:
        """Return the final numbers; they stay in `options.folder` too, with predictions and own adapter."""
        self.learner.load_shared(request.tensors)
        folder = Path(str(request.options["folder"]))
        folder.mkdir(parents=True, exist_ok=True)
        records = self.learner.finish(self._plan(request, {}), folder)
        evaluations = [item.model_dump(mode="json", exclude={"sites"}) for item in records]
        write_json(folder / TESTED, {"evaluations": evaluations})
        return TaskResult({"evaluations": evaluations}, {})


def _append_line(path: Path, values: Mapping[str, Any]) -> None:
    """Append JSON values to a file of the site's own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def _counts(request: TaskRequest) -> bool:
    """Return whether a request is for an update that counts: no canary, and no sums of profiles."""
    hints = request.plan.get("hints", {})
    return request.task == "fit" and not request.options.get("canary") and not hints.get("profiles")


def _memory() -> dict[str, float]:
    """Return the memory that this worker has used at most, in GB, and as a share of what it could have."""
    if torch.cuda.is_initialized():
        peak, total = torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info()[1]
    else:
        peak = peak_bytes()
        total = peak + free_bytes()
    return {"peak_gb": peak / 1e9, "memory_share": peak / total}


def _as_result(update: Update) -> TaskResult:
    tensors, facts = update.to_message()
    return TaskResult(facts, tensors)


_TASKS: dict[str, Callable[[WorkerSession, TaskRequest], TaskResult]] = {
    "prepare": WorkerSession.prepare,
    "sketch": WorkerSession.sketch,
    "count": WorkerSession.count,
    "offer": WorkerSession.offer,
    "answer": WorkerSession.answer,
    "compare": WorkerSession.compare,
    "initialise": WorkerSession.initialise,
    "fit": WorkerSession.fit,
    "evaluate": WorkerSession.evaluate,
    "finish": WorkerSession.finish,
}
