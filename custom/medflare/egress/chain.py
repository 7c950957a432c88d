# SPDX-License-Identifier: Apache-2.0
"""The one point through which every reply leaves a site, in this order (design.md 3):

allow-list of declared names and shapes -> the hospital's policy -> compression -> seal -> ledger. The seal
(masks or encryption) is the last step that changes values, so the ledger holds the digest of what was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from medflare.core.tensor_names import SUM_PREFIX
from medflare.core.tensors import SharedSpec, State
from medflare.egress.declaration import (
    DESCRIPTION,
    EXACT,
    FACTS,
    MAX_METRICS,
    MESSAGES,
    METRIC,
    SECURE_SUM,
    fact_problems,
    message_problems,
    shown,
    sketch_bytes,
    tensor_problems,
)
from medflare.egress.failures import EgressError, Failure
from medflare.egress.ledger import Ledger, declaration_digest, declaration_of, tensor_facts
from medflare.egress.policy import Policy, PolicyError
from medflare.wire import compression
from medflare.wire.digest import byte_count
from medflare.wire.spec_codec import spec_to_json
from medflare.wire.task_messages import TaskResult

__all__ = ["DESCRIPTION", "FACTS", "MAX_METRICS", "METRIC", "SECURE_SUM", "Compress", "Egress", "Seal"]

Compress = Callable[[Mapping[str, Tensor], str], State]
"""(tensors, kind) -> what travels: `compression.compress`, or a site's `ErrorFeedback.compress`."""
WORKED = frozenset({"fit", "evaluate", "finish"})
"""Tasks that bring a state to the site."""
NOTHING = torch.zeros(())
MAX_SEALED = 3
"""Vectors of a sealed message."""


class Seal(Protocol):
    """What closes an update's tensors: they come out as a few packed vectors of other names."""

    @property
    def name(self) -> Literal["mask", "he"]: ...

    def __call__(self, tensors: State) -> State: ...

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts that leave beside the sealed tensors."""
        ...


@dataclass(slots=True)
class Egress:
    """The site's door for one run: what was declared, the hospital's policy, and the ledger of what left.

    `declare` may be called once; a second declaration must say the same. What is refused is written to the
    ledger: which rule, and never a value.
    """

    ledger: Path
    site: str
    job: str
    uplink: compression.Uplink = "bfloat16"
    policy: Policy = field(default_factory=Policy)
    job_name: str = ""
    shared: SharedSpec | None = None
    sums: SharedSpec | None = None
    alone: tuple[SharedSpec, ...] = ()
    book: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.book = Ledger(self.ledger, self.site, self.job, self.job_name)

    def declare(self, shared: SharedSpec, sums: SharedSpec, alone: Sequence[SharedSpec] = ()) -> None:
        """Fixes what may leave; EgressError if it differs from an earlier declaration.

        alone: sums that leave in messages of their own, never beside an update.
        """
        declared = (shared, sums, tuple(alone))
        if self.shared is not None and (self.shared, self.sums, self.alone) != declared:
            raise EgressError("the learner declares other tensors than before; a declaration cannot change.")
        self.shared, self.sums, self.alone = declared

    def admit(self, task: str, round_number: int, **asked: Any) -> None:
        """Whether the job may ask this of the site at all; `asked` as in `Policy.admit`.

        First values are told before the site has worked with any state and never again, in this process or a
        later one: afterwards they would be what it has learned.
        """
        if task == "initialise" and self.book.came() & WORKED:
            error = EgressError("first values were asked for after this site was given a state to work on.")
            self._block(task, round_number, error)
            raise error
        self.book.asked(task)
        try:
            self.policy.admit(job=self.book.job_name or self.job, **asked)
            if task == "sketch":
                self.policy.sketch()
            elif task in EXACT:
                self.policy.exact()
        except PolicyError as error:
            self._block(task, round_number, error)
            raise

    def send(
        self,
        task: str,
        round_number: int,
        result: TaskResult,
        compress: Compress = compression.compress,
        seal: Seal | None = None,
    ) -> TaskResult:
        """The result as it leaves; EgressError or PolicyError names everything that may not."""
        try:
            return self._send(task, round_number, result, compress, seal)
        except (EgressError, PolicyError) as error:
            self._block(task, round_number, error)
            raise

    def failed(self, task: str, round_number: int, failure: Failure) -> None:
        """Writes down that a failure was told to the server, and in which words."""
        self.book.failed(task, round_number, failure)

    def _send(
        self, task: str, round_number: int, result: TaskResult, compress: Compress, seal: Seal | None
    ) -> TaskResult:
        allowed = self._check(task, result)
        facts, withheld = self._facts(result.facts)
        facts = facts if seal is None else seal.facts(facts)
        applied = [seal.name] if seal is not None else []
        if task == "fit":
            self.policy.update(result.tensors, applied)
        elif result.tensors and task not in MESSAGES:
            self.policy.first_values(result.tensors)
        kind = compression.initial_kind(self.uplink) if task == "initialise" else self.uplink
        facts_bytes = len(json.dumps(facts))
        if seal is None:  # before compression, which may remember what it has sent
            spec = {name: (tuple(value.shape), value.dtype) for name, value in result.tensors.items()}
            self._volume(round_number, facts_bytes + compression.message_bytes(spec, kind))
        tensors = compress(result.tensors, kind)
        if seal is not None:
            tensors = _sealed(seal, tensors)
            self._volume(round_number, facts_bytes + byte_count(tensors))
        line = tensor_facts(result.tensors, tensors, allowed)
        line |= {"protections": applied, "facts": sorted(facts), "facts_bytes": facts_bytes}
        line["compression"] = kind if tensors and seal is None and task not in MESSAGES else None
        if seal is not None:
            line["sealed"] = spec_to_json({n: (tuple(v.shape), v.dtype) for n, v in tensors.items()})
        if withheld:
            line["withheld"] = withheld
        if sketch := sketch_bytes(facts):
            line["sketch"] = {"bytes": len(sketch), "sha256": hashlib.sha256(sketch).hexdigest()}
        if "partner" in facts:
            line["exact"] = {"partner": facts["partner"], **_message(tensors)}
        self.book.sent(task, round_number, line | self._stated())
        return TaskResult(facts, tensors)

    def _check(self, task: str, result: TaskResult) -> SharedSpec:
        """What this task may hold; EgressError names all that was not declared."""
        allowed = self._allowed(task, result.tensors)
        problems = fact_problems(task, result.facts, self.site)
        if task in MESSAGES:
            problems += message_problems(task, result.tensors)
        else:
            problems += tensor_problems(result.tensors, allowed)
        problems += self._moved_by_nobody(result)
        if problems:
            raise EgressError(f"{task}: not declared, so it stays here: {'; '.join(problems[:8])}.")
        return allowed

    def _moved_by_nobody(self, result: TaskResult) -> list[str]:
        """Changes that say they are of no examples: so few are never counted."""
        if result.facts.get("examples") != 0:
            return []
        moved = [name for name in sorted(self.shared or {}) if torch.any(result.tensors.get(name, NOTHING))]
        return [f"change of {shown(name)} by an update of no examples" for name in moved]

    def _allowed(self, task: str, tensors: State) -> SharedSpec:
        if task not in ("initialise", "fit"):
            return {}
        if self.shared is None or self.sums is None:
            raise EgressError(f"{task}: nothing was declared yet; a run starts with 'prepare'.")
        if task == "fit":
            for spec in (_as_sums(part) for part in self.alone):
                if set(spec) == set(tensors):
                    return spec
        sums = _as_sums(self.sums) if task == "fit" else {}
        return {**self.shared, **sums}

    def _facts(self, facts: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """(facts without the metrics that stay here, how many those are); PolicyError for small numbers."""
        out, withheld = dict(facts), 0
        if "sketch" in facts:  # of no text too, it may be of triples of this site's patients
            self.policy.counted("a sketch", facts.get("examples", 0))
        elif "elements" in facts:
            self.policy.counted("the size of a knowledge graph", facts["examples"])
        elif "partner" in facts:  # a server may go on after the size was refused
            self.policy.counted("a comparison of knowledge graphs", facts["examples"])
        elif facts.get("examples"):
            self.policy.counted("an update", facts["examples"])
        for split, count in facts.get("describe", {}).get("examples", {}).items():
            if count:
                self.policy.counted(f"the split '{split}'", count)
        if "metrics" in facts:
            out["metrics"] = self.policy.metrics(facts["metrics"])
            withheld += len(facts["metrics"]) - len(out["metrics"])
        if "evaluations" in facts:
            out["evaluations"] = []
            for item in facts["evaluations"]:
                self.policy.counted("an evaluation", item["studies"])
                kept = self.policy.metrics(item["metrics"])
                withheld += len(item["metrics"]) - len(kept)
                out["evaluations"].append({**item, "metrics": kept})
        return out, withheld

    def _volume(self, round_number: int, size: int) -> None:
        self.policy.volume(self.book.left(round_number), size)

    def _stated(self) -> dict[str, Any]:
        """Which declaration and which rules were in force."""
        stated = self.book.state("policy", self.policy.digest(), self.policy.rules.model_dump(mode="json"))
        if self.shared is not None and self.sums is not None:
            sums = {name: spec for part in (self.sums, *self.alone) for name, spec in part.items()}
            declaration = declaration_of(self.shared, sums)
            stated |= self.book.state("declaration", declaration_digest(declaration), declaration)
        return stated

    def _block(self, task: str, round_number: int, error: EgressError | PolicyError) -> None:
        if isinstance(error, PolicyError):
            rules = [refusal.rule for refusal in error.refusals]
            self.book.blocked(task, round_number, rules, str(error), error.file)
        else:
            self.book.blocked(task, round_number, ["declaration"], str(error), None)


def _message(tensors: State) -> dict[str, Any]:
    """What the ledger says of a message to another site, which may be none."""
    said: dict[str, Any] = {}
    for name, value in tensors.items():
        data = value.numpy().tobytes()
        said = {"message": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return said


def _as_sums(spec: SharedSpec) -> SharedSpec:
    """A declaration of sums under the names they travel by."""
    return {SUM_PREFIX + name: found for name, found in spec.items()}


def _sealed(seal: Seal, tensors: State) -> State:
    """What the seal made; EgressError if a tensor came out of it as it was."""
    out = seal(tensors)
    open_still = sorted(set(out) & set(tensors))
    if open_still or not 1 <= len(out) <= MAX_SEALED:
        raise EgressError(
            f"the seal '{seal.name}' gave {len(out)} tensors, {len(open_still)} of them under a declared "
            f"name; expected one to {MAX_SEALED} packed vectors."
        )
    return out
