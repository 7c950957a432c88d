# SPDX-License-Identifier: Apache-2.0
"""The egress chain: the one point through which every reply leaves a site.

Its steps, in this order: declaration (allow-list of names and shapes) -> the hospital's policy -> compression
-> seal -> ledger. The order is part of the security model:

* The declaration comes first, so that nothing later ever sees a tensor that was not announced before round 1.
* The policy sees the learner's own names and counts, before compression and seal replace them.
* Compression precedes the seal: sealed values look random and cannot be compressed, and masks need exact
  numbers.
* The seal (masks or encryption) is the last step that changes values, so the ledger holds the digest of what
  was sent.
* The ledger is written before the message leaves: a crash may record a message that never left, never the
  reverse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from medflare.core.tensor_names import SUM_PREFIX, feature_kind, with_prefix
from medflare.core.tensors import SharedSpec, State
from medflare.egress.declaration import (
    EXACT,
    MESSAGES,
    sketch_bytes,
)
from medflare.egress.declared import Declared, Undeclared, check_features, under_prefix
from medflare.egress.failures import EgressError, Failure
from medflare.egress.job_memory import FIRST_PLACE, JobMemory
from medflare.egress.ledger import Ledger, declaration_digest
from medflare.egress.permitted_facts import DIGITS, DIGITS_SEALED, SPENT, permitted_facts
from medflare.egress.policy import Policy, PolicyError
from medflare.egress.private_updates import check_noise, without_patients
from medflare.egress.seal import Seal, apply_seal
from medflare.egress.summed_evaluations import EXCHANGES, summed_evaluation, without_numbers
from medflare.egress.tensor_facts import tensor_facts
from medflare.wire import compression
from medflare.wire.digest import byte_count
from medflare.wire.spec_codec import spec_to_json
from medflare.wire.task_messages import TaskResult

Compress = Callable[[Mapping[str, Tensor], str], State]
"""(tensors, codec) -> compressed tensors: `compression.compress`, or a site's `ErrorFeedback.compress`."""
STATE_TASKS = frozenset({"fit", "evaluate", "finish"})
"""Tasks that bring a state to the site."""


@dataclass(slots=True)
class Egress:
    """The egress chain of one run at one site: its declaration, the hospital's policy, and the ledger.

    What is refused is written to the ledger too: which rule refused, never a value.

    Attributes:
        ledger: file of the ledger.
        job: FLARE's id of the job; `job_name` is its name in meta.json.
        uplink: codec of the present request.
        policy: rules in force now.
        declared: the declared tensors; `Undeclared` before `declare`.
        sealed: whether the job has a protection, under which what is measured leaves in sums or not at all.
        private: whether the job trains with differential privacy: what has no noise then stays here.
        memory: what this site remembers of the run, whatever the server calls its rounds.
        work: digest of what the present request asks to be done; repeated: whether the very same was answered
            before, so that the answer is sent again and not counted again.
        record: writes the ledger.
    """

    ledger: Path
    site: str
    job: str
    uplink: compression.Uplink = "bfloat16"
    policy: Policy = field(default_factory=Policy)
    job_name: str = ""
    declared: Declared = field(default_factory=Undeclared)
    sealed: bool = False
    private: bool = False
    memory: JobMemory = field(default_factory=JobMemory)
    work: str = ""
    repeated: bool = False
    record: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.record = Ledger(self.ledger, self.site, self.job, self.job_name)

    def declare(
        self,
        shared: SharedSpec,
        sums: SharedSpec,
        separate: Mapping[str, SharedSpec] | None = None,
        examples: Mapping[str, int] | None = None,
    ) -> None:
        """Fix what may leave; a second declaration must be the same.

        Args:
            separate: exchange -> sums that leave in messages of their own, never beside an update.
            examples: split -> count, the weight of what is measured on it.

        Raises:
            EgressError: it differs from an earlier declaration.
            PolicyError: it holds features of images that may not leave.
        """
        declared = Declared(shared, sums, dict(separate or {}), dict(examples or {}))
        parts = (sums, *declared.separate.values())
        self._check_policy_on_features("prepare", [name for part in parts for name in part])
        if self.declared not in (Undeclared(), declared):
            raise EgressError("the learner declares other tensors than before; a declaration cannot change.")
        self.declared = declared

    def _check_policy_on_features(self, task: str, names: Collection[str]) -> None:
        try:
            self.policy.features(map(feature_kind, names))
        except PolicyError as error:
            self._block(task, -1, error)
            raise

    def admit(self, task: str, round_number: int, place: int | None = None, **request: Any) -> None:
        """Check whether the job may ask this task of the site.

        First values leave before the site has received any state, and never again, in this process or a later
        one: afterwards they would be what the site has learned. The ledger's file remembers across restarts.

        Args:
            place: of a request that may open a round, as in `JobMemory.open_round`; None for all others.
            request: as in `Policy.admit`.

        Raises:
            EgressError: first values were asked for too late, or a round that was answered or is over.
            PolicyError: a rule refuses.
        """
        self.repeated = task == "fit" and place is not None and self.memory.was_answered(place, self.work)
        if task == "initialise" and self.has_received_state():
            error = EgressError("first values were asked for after this site was given a state to work on.")
            self._block(task, round_number, error)
            raise error
        self.record.note_task(task)
        self.memory.note_task(task)
        try:
            self.policy.admit(job=self.record.job_name or self.job, private=self.private, **request)
            if self.private and task in (*EXACT, "sketch"):
                self.policy.unnoised("facts of the knowledge graph")
            if task == "sketch":
                self.policy.sketch()
            elif task in EXACT:
                self.policy.exact()
            if place is not None:
                if place >= FIRST_PLACE and self.memory.opens(place):
                    self.policy.rounds_opened(self.memory.facts.updates)
                self.memory.open_round(task, place, round_number, self.work)
        except (EgressError, PolicyError) as error:
            self._block(task, round_number, error)
            raise

    def has_received_state(self) -> bool:
        """Return whether this site was given a state in this run, after which its tensors are no first values
        any more."""
        return bool(STATE_TASKS & {*self.record.tasks_so_far(), *self.memory.facts.tasks})

    def send(
        self,
        task: str,
        round_number: int,
        result: TaskResult,
        compress: Compress = compression.compress,
        seal: Seal | None = None,
        alone: bool = False,
    ) -> TaskResult:
        """Return the result as it leaves the site, after writing the ledger.

        Args:
            compress: of the tensors, in the codec of `uplink`.
            seal: of the compressed tensors; None where nothing protects them.
            alone: whether numbers of this site may leave under a protection, as `Measurement.alone` has it.

        Raises:
            EgressError: the result holds something that was not declared.
            PolicyError: a rule refuses. Both name everything that may not leave.
        """
        try:
            return self._send(task, round_number, result, compress, seal, alone)
        except (EgressError, PolicyError) as error:
            self._block(task, round_number, error)
            raise

    def failed(self, task: str, round_number: int, failure: Failure) -> None:
        """Record that a failure was reported to the server, and its text."""
        self.record.failed(task, round_number, failure)

    def _send(
        self,
        task: str,
        round_number: int,
        result: TaskResult,
        compress: Compress,
        seal: Seal | None,
        alone: bool,
    ) -> TaskResult:
        spent = result.facts.get(SPENT)
        result = TaskResult({n: v for n, v in result.facts.items() if n != SPENT}, result.tensors)
        # 1. declaration
        allowed = self.declared.check(task, result, self.site, self.has_received_state())
        check_features(self.policy, task, result.tensors)
        policy = self.policy.within_privacy(self.private, task)
        if self.private:
            check_noise(policy, self.declared.shared, task, result)
        # 2. policy: counts and metrics first, then names, then the volume
        applied = [seal.name] if seal is not None else []
        if self.sealed and task in EXCHANGES and not alone:
            result, allowed, withheld = self._summed(task, result, sealed=seal is not None)
            facts = result.facts
        else:
            digits = DIGITS_SEALED if self.sealed else DIGITS
            facts, withheld = permitted_facts(policy, result.facts, digits)
            if self.private and task == "prepare":
                facts["describe"] = without_patients(facts["describe"])
        facts = facts if seal is None else seal.facts(facts)
        if task in EXCHANGES and result.tensors:
            self.policy.numbers(applied)
        elif task == "fit":
            self.policy.update(result.tensors, applied)
        elif result.tensors and task not in MESSAGES:
            self.policy.first_values(result.tensors)
        codec = compression.initial_codec(self.uplink) if task == "initialise" else self.uplink
        facts_bytes = len(json.dumps(facts))
        if seal is None:
            # The size is computed before compressing: error feedback counts a compressed update as sent.
            spec = _spec_of(result.tensors)
            self._check_volume(facts_bytes + compression.message_bytes(spec, codec))
        # 3. compression, 4. seal
        tensors = compress(result.tensors, codec)
        if seal is not None:
            tensors = apply_seal(seal, tensors)
            self._check_volume(facts_bytes + byte_count(tensors))
        # 5. ledger
        line = tensor_facts(result.tensors, tensors, allowed)
        line |= {"protections": applied, "facts": sorted(facts), "facts_bytes": facts_bytes}
        line["compression"] = codec if tensors and seal is None and task not in MESSAGES else None
        if seal is not None:
            line["sealed"] = spec_to_json(_spec_of(tensors))
        if withheld:
            line["withheld"] = withheld
        if spent is not None:
            line["privacy"] = spent
        if sketch := sketch_bytes(facts):
            line["sketch"] = {"bytes": len(sketch), "sha256": hashlib.sha256(sketch).hexdigest()}
        if "partner" in facts:
            line["exact"] = {"partner": facts["partner"], **_message_facts(tensors)}
        line |= self._references(allowed)
        if self.repeated:
            self.record.resent(task, round_number, line)
        else:
            self.memory.add(int(line["bytes"]) + facts_bytes, answered=task == "fit", work=self.work)
            self.record.sent(task, round_number, line, self.memory.facts.opened)
        return TaskResult(facts, tensors)

    def _summed(self, task: str, result: TaskResult, sealed: bool) -> tuple[TaskResult, SharedSpec, int]:
        """Return (an evaluation without its numbers, which are sums now, their declaration, how many stay).

        This is the last point at which a number of one site could leave under a protection: without a seal
        there is nothing that would hide it among others, and all of them stay.

        Args:
            sealed: whether a seal will close the sums.
        """
        facts = without_numbers(task, result.facts)
        spec = self.declared.separate.get(EXCHANGES[task], {})
        if not sealed:
            parts = result.facts.get("evaluations", [result.facts])
            return TaskResult(facts, {}), {}, sum(len(part["metrics"]) for part in parts)
        if not spec:
            raise EgressError(f"{task}: no sums of it were declared, so it stays here.")
        policy = self.policy.within_privacy(self.private, task)
        sums, withheld = summed_evaluation(policy, task, result.facts, spec, self.declared.examples)
        return TaskResult(facts, with_prefix(sums, SUM_PREFIX)), under_prefix(spec), withheld

    def _check_volume(self, size: int) -> None:
        """Check the bytes since this site opened its last round: the server's number of it opens no other."""
        if self.repeated:
            return
        facts = self.memory.facts
        self.policy.volume(max(facts.bytes, self.record.bytes_sent(facts.opened)), size)

    def _references(self, allowed: SharedSpec) -> dict[str, Any]:
        """Return which rules and which declaration were in force, for a line of the ledger.

        Args:
            allowed: what the message could hold; separate sums have a declaration of their own.
        """
        references = self.record.reference(
            "policy", self.policy.digest(), self.policy.rules.model_dump(mode="json")
        )
        if self.declared != Undeclared():
            declaration = self.declared.to_ledger(allowed)
            digest = declaration_digest(declaration)
            references |= self.record.reference("declaration", digest, declaration)
        return references

    def _block(self, task: str, round_number: int, error: EgressError | PolicyError) -> None:
        """Record a message that stays at the site, with the rules that hold it back."""
        if isinstance(error, PolicyError):
            rules = [refusal.rule for refusal in error.refusals]
            self.record.blocked(task, round_number, rules, str(error), error.file)
        else:
            self.record.blocked(task, round_number, ["declaration"], str(error), None)


def _spec_of(tensors: Mapping[str, Tensor]) -> SharedSpec:
    return {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}


def _message_facts(tensors: State) -> dict[str, Any]:
    """Return what the ledger states of a message to another site; empty where there is none."""
    facts: dict[str, Any] = {}
    for name, value in tensors.items():
        data = value.numpy().tobytes()
        facts = {"message": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return facts
