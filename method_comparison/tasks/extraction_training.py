# SPDX-License-Identifier: Apache-2.0
"""Training of the extraction comparisons in one process, with compression as on the wire, and their tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import split_by_prefix, with_prefix
from medflare.core.tensors import State, apply_delta
from medflare.core.update import Update
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.in_process.checkpoint import LoopCheckpoint
from method_comparison.tasks.extraction_scores import PREDICTIONS, SCORES
from method_comparison.tasks.note_counts import write_documents

LOST = "lost."
"""Prefix of what compression took from updates, among a site's local tensors."""


@dataclass(frozen=True)
class Codec:
    """Encoding of updates and states on the way; bytes of one round are counted either way."""

    up: str = "float32"
    down: str = "float32"


@dataclass
class Travelling:
    """A learner whose state and updates are rounded as a job's codec would, with error feedback."""

    learner: Learner
    codec: Codec
    residual: State = field(default_factory=dict)
    sent: int = 0
    received: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = self.learner.local_state()
        sizes = {"sent": self.sent, "received": self.received}
        return tensors | with_prefix(self.residual, LOST), {"learner": values, **sizes}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        own, self.residual = split_by_prefix(tensors, LOST)
        self.learner.load_local_state(own, values["learner"])
        self.sent, self.received = int(values["sent"]), int(values["received"])

    def load_shared(self, state: State) -> None:
        arrived, size = _travel(state, self.codec.down)
        self.received += size
        self.learner.load_shared(arrived)

    def fit(self, plan: RoundPlan) -> Update:
        update = self.learner.fit(plan)
        wanted = {n: v + self.residual[n] if n in self.residual else v for n, v in update.delta.items()}
        update.delta, size = _travel(wanted, self.codec.up)
        self.sent += size
        if self.codec.up.startswith("int"):
            self.residual = {n: wanted[n] - update.delta[n] for n in wanted}
        return update


def _travel(state: State, codec: str) -> tuple[State, int]:
    """Return what arrives, in fp32, and its bytes on the way."""
    from medflare.wire import compression
    from medflare.wire.digest import byte_count

    packed = compression.compress(state, codec)
    arrived = {name: value.float() for name, value in compression.decompress(packed).items()}
    return arrived, byte_count(packed)


def grouped(mode: str, sites: Mapping[str, SiteConfig]) -> dict[str, dict[str, SiteConfig]]:
    """Owner of a model -> who trains it; "" where there is one model for all."""
    if mode == "single":
        return {name: {name: site} for name, site in sites.items()}
    if mode == "pooled":
        parts = tuple(site.cohort[0] for site in sites.values())
        return {"": {"pooled": SiteConfig(name="pooled", cohort=parts)}}
    return {"": dict(sites)}


def make_learner(learner: str, settings: Mapping[str, Any], site: SiteConfig, seed: int) -> Any:
    from medflare.learners.registry import build_learner

    return build_learner(learner, dict(settings), site, seed)


def make_plans(rounds: int, exchanges: int, epochs: int, seed: int) -> list[RoundPlan]:
    """Return a plan for each exchange of updates; those of one round share its passes."""
    share = epochs / exchanges if exchanges > 1 else None
    count = rounds * exchanges
    return [RoundPlan(round=number, rounds=count, seed=seed, fraction=share) for number in range(count)]


def train_and_test(
    method: Any,
    settings: Mapping[str, Any],
    members: Mapping[str, SiteConfig],
    judge: SiteConfig | None,
    plans: Sequence[RoundPlan],
    codec: Codec,
    tests: Mapping[str, list[Note]],
    folder: Path,
    checkpoint: LoopCheckpoint,
) -> list[int]:
    """Federate `members`, test the final state on every site's notes, write predictions.

    Args:
        plans: one for each exchange of updates, all of one seed.
        checkpoint: from which an interrupted training goes on.

    Returns:
        The bytes of each member's messages, both ways.
    """
    from medflare.aggregation import make_rule
    from medflare.aggregation.capabilities import ScoresCandidates
    from medflare.in_process.loop import federate

    seed = plans[0].seed
    learners = {
        name: Travelling(make_learner(method.learner, settings, site, seed), codec)
        for name, site in members.items()
    }
    rule = make_rule(method.rule, dict(method.rule_settings))
    scores = rule.capability(ScoresCandidates) is not None
    server = make_learner(method.learner, settings, judge, seed) if scores and judge is not None else None
    rounds = checkpoint.noted

    def note(number: int, state: State, updates: Mapping[str, Update]) -> None:
        found = {"sites": {s: u.metrics for s, u in updates.items()}, "rule": rule.report()}
        rounds.append(json.loads(json.dumps(found, default=float)))

    state = federate(learners, rule, len(plans), plans.__getitem__, note, judge=server, checkpoint=checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rounds.json").write_text(json.dumps(rounds))
    own = settings.get("sharing") == "fedsa" or method.local_passes > 0
    first = next(iter(learners.values())).learner
    for name, notes in tests.items():
        tester = learners[name].learner if own and name in learners else first
        if own and name not in learners:
            continue
        tester.load_shared({key: value.clone() for key, value in state.items()})
        train_alone(tester, state, method.local_passes, seed)
        _write(tester, notes, name, "personalised" if own else "generic", folder)
    return [item.sent + item.received for item in learners.values()]


def train_alone(learner: Learner, state: State, passes: int, seed: int) -> None:
    """Train a site's learner from the shared state for so many further rounds that nobody else sees."""
    for number in range(passes):
        update = learner.fit(RoundPlan(round=number, rounds=passes, seed=seed))
        state = apply_delta(state, update.delta)
        learner.load_shared({name: value.clone() for name, value in state.items()})


def _write(
    tester: Any, notes: list[Note], site: str, kind: Literal["generic", "personalised"], folder: Path
) -> None:
    documents = tester.predictor.documents(notes, site, kind)
    write_documents(folder / site / PREDICTIONS, documents, tuple(SCORES))


def zero_shot(settings: Mapping[str, Any], tests: Mapping[str, list[Note]], folder: Path) -> None:
    """The frozen model with the same prompts and no adapter (7.24)."""
    from medflare.learners.extraction.settings import METHOD
    from medflare.tasks.extraction.extractor import ExportedExtraction, base_extractor

    chosen = METHOD.resolve(settings).model_dump(include={"lora", "format", "sentences", "max_tokens"})
    extractor = base_extractor(ExportedExtraction.model_validate(chosen))
    for name, notes in tests.items():
        documents = extractor.documents(notes, name, "none")
        write_documents(folder / name / PREDICTIONS, documents, tuple(SCORES))
