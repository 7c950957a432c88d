# SPDX-License-Identifier: Apache-2.0
"""Limits on how often, and of which state, a site lets a job measure losses and scores.

A loss is a question about the site's patients that the server words: it chooses the state, and the difference
of two losses over groups that differ by one patient is that patient's. So a site counts what it was asked,
in the job's memory on its own disk, before it measures anything:

* one evaluation of a split in a round, and rounds do not go backwards; one final test in a job;
* over as many examples as the first one of its kind was asked for, so that no two differ by a few;
* under a protection the state must be the one that the sites are sent to train on next, the same in all
  evaluations of a round. A site cannot tell before it is sent that, so a server that lied is found out one
  evaluation too late, and gets nothing more. Candidates, which are no such states, are not scored then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medflare.core.hints import RoundHints
from medflare.egress.failures import EgressError
from medflare.egress.job_memory import JobMemory
from medflare.wire.digest import state_digest


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement that a request asks for.

    Attributes:
        kind: which of the job's series of evaluations it belongs to.
        split: it is measured on.
        asked: over how many examples: of a probe, and at most; None for all, or as the method's settings say.
        most: how many of its kind may come in one round.
        alone: whether what one site measured may leave under masks too: a probe, which its policy must allow.
        of_state: whether its state can be the one of the run; a candidate is a state of its own.
    """

    kind: str
    split: str
    asked: tuple[int | None, int | None]
    most: int = 1
    of_state: bool = True
    alone: bool = False

    @property
    def examples(self) -> int | None:
        """The smaller of both numbers that stands there; 0 asks for nothing."""
        return min((count for count in self.asked if count), default=None)

    @classmethod
    def of(
        cls, task: str, plan: Mapping[str, Any], options: Mapping[str, Any], sites: int
    ) -> Measurement | None:
        """Return what a request measures; None where it measures nothing.

        Args:
            sites: how many take part; a rule may have every site score every site's candidate.

        Raises:
            EgressError: no rule measures that.
        """
        limit = plan.get("limit")
        if task == "finish":
            return cls("finish", "test", (None, limit))
        if task != "evaluate":
            return None
        split, hints = str(options["split"]), RoundHints.from_json(plan.get("hints", {}))
        if hints.probe:
            if split != "train":
                raise EgressError(f"a probe of the split '{split}' was asked for; rules probe 'train' alone.")
            return cls(f"probe of {split}", split, (hints.probe, limit), alone=True)
        if hints.loss_only:
            return cls(f"scores on {split}", split, (None, limit), most=sites, of_state=False)
        return cls(f"evaluation on {split}", split, (None, limit))


def admit_measurement(
    memory: JobMemory, asked: Measurement, round_number: int, sealed: bool = False, work: str = ""
) -> None:
    """Count an evaluation that is about to be made.

    The very same one may be asked for again, since its answer may have been lost in a crash: it has the same
    answer, and is not counted again.

    Args:
        sealed: whether the job has a protection.
        work: digest of plan and state.

    Raises:
        EgressError: the job has had it, this site does nothing more in it, or the protection excludes it.
    """
    facts = memory.facts
    if facts.distrust:
        raise EgressError(facts.distrust)
    if sealed and not asked.of_state:
        raise EgressError(
            f"{asked.kind} were asked for under a protection, where no rule can score single updates and a "
            "site measures the run's state alone; nothing leaves."
        )
    last, count = facts.measured.get(asked.kind, [round_number, 0])
    works = facts.measured_works.get(asked.kind, []) if round_number == last else []
    if work and work in works:
        return
    if asked.kind == "finish" and count:
        raise EgressError("a second final test was asked for; a job has one, and no more leaves.")
    if round_number < last:
        raise EgressError(
            f"the {asked.kind} of round {round_number + 1} was asked for after that of round {last + 1}. "
            "Rounds do not go backwards; nothing leaves."
        )
    count = count + 1 if round_number == last else 1
    if count > asked.most:
        raise EgressError(
            f"the {asked.kind} of round {round_number + 1} was asked for more than {_times(asked.most)}; no "
            "more leaves. The difference of two could be the loss of one patient."
        )
    first = facts.limits.get(asked.kind, list(asked.asked))
    if first != list(asked.asked):
        raise EgressError(
            f"the {asked.kind} was asked for over {_examples(asked.asked)}, and in an earlier round over "
            f"{_examples(first)}. It stays the same for a whole job: the difference of two could be the loss "
            "of one patient."
        )
    memory.keep(
        measured={**facts.measured, asked.kind: [round_number, count]},
        limits={**facts.limits, asked.kind: list(asked.asked)},
        measured_works={**facts.measured_works, asked.kind: [*works, work]},
    )


def check_state(memory: JobMemory, task: str, round_number: int, state: Mapping[str, Tensor]) -> None:
    """Check under a protection that the state of an evaluation is the one that is trained on next.

    Args:
        task: "evaluate" of the run's state, "fit" or "finish".
        state: as the learner reads it, without totals.

    Raises:
        EgressError: it was another one; nothing more is done in this job.
    """
    facts = memory.facts
    if facts.distrust:
        raise EgressError(facts.distrust)
    digest, before = state_digest(state), round_number if task == "evaluate" else round_number - 1
    if facts.evaluated_round == before and facts.evaluated_state != digest:
        words = {
            "evaluate": "sent to measure",
            "fit": "sent for training",
            "finish": "sent for the final test",
        }
        distrust = (
            f"the state {words[task]} in round {round_number + 1} is not the one this site evaluated at the "
            f"end of round {before + 1}. Under a protection the server has losses of the run's state only; "
            "this site does nothing more in this job."
        )
        memory.keep(distrust=distrust)
        raise EgressError(distrust)
    if task == "evaluate":
        memory.keep(evaluated_round=round_number, evaluated_state=digest)


def _times(most: int) -> str:
    return "once" if most == 1 else f"{most} times"


def _examples(asked: Sequence[int | None]) -> str:
    counts = [str(count) for count in asked if count is not None]
    return f"{' and at most '.join(counts)} examples" if counts else "all examples"
