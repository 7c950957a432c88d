# SPDX-License-Identifier: Apache-2.0
"""Memory of one run at a site, on its own disk: which run it is, and how many rounds it has answered.

A server names runs and rounds as it likes. A site therefore counts itself: a round is opened by the first
request for an update (or for the keys of a masked sum) of a place after all earlier ones, its bytes count
until the next one is opened, and one update leaves in it. The file lies beside the site's local state, not in
FLARE's folder of the job, which a server empties by deploying the same job again; a job that goes on with the
run of an earlier one finds the memory of that one.

What was answered may be asked again, since the answer may have been lost in a crash: the very same work (plan
and tensors) gets the very same answer, which says nothing new and is not counted again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from medflare.egress.failures import EgressError, MessageError, clean_text
from medflare.wire.durable import write_json

FILE = "job_memory.json"
FIRST_PLACE = 0
"""Place of the first round; a canary's is -1, and sums before it are at -2 and below."""


class JobFacts(BaseModel):
    """The file's content.

    Attributes:
        settings: digest of the job's settings, as `submitted_job` computes it.
        submitter, job: who submitted the first job, and what that job is called.
        run_id, seed, roster: of the run that this job is, as its first 'prepare' said; empty before it.
        tasks: tasks that came so far.
        opened: rounds opened so far, of whatever kind; updates: of them those from the first round on.
        place: of the last round opened; answered: of the last update that left.
        works: place -> digest of the work that was answered there: of the last update, and of all before
            round 0.
        bytes: that left since the last round was opened.
        measured: kind of evaluation -> [last round of it, how many in that round]; measured_works: the
            digests of their work.
        limits: kind of evaluation -> over how many examples the first was asked for, as `Measurement.asked`.
        evaluated_round, evaluated_state: of the last evaluation under a protection: its round, and the digest
            of its state.
        distrust: why this site does nothing more in the job; empty while it does.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    settings: str = ""
    submitter: str = ""
    job: str = ""
    run_id: str = ""
    seed: int = 0
    roster: list[str] = []
    tasks: list[str] = []
    opened: int = 0
    updates: int = 0
    place: int | None = None
    answered: int | None = None
    works: dict[str, str] = {}
    bytes: int = 0
    measured: dict[str, list[int]] = {}
    measured_works: dict[str, list[str]] = {}
    limits: dict[str, list[int | None]] = {}
    evaluated_round: int | None = None
    evaluated_state: str = ""
    distrust: str = ""


@dataclass(slots=True)
class JobMemory:
    """The memory of one job.

    Args:
        file: where it is kept; None keeps it for the life of this object only.
    """

    file: Path | None = None
    _facts: JobFacts | None = field(default=None)

    @property
    def facts(self) -> JobFacts:
        """The facts of the job, an earlier process's answers included.

        Raises:
            EgressError: the file is damaged; a site that has forgotten what it answered answers nothing.
        """
        if self._facts is None:
            self._facts = JobFacts()
            if self.file is not None and self.file.exists():
                try:
                    self._facts = JobFacts.model_validate(json.loads(self.file.read_bytes()))
                except (ValueError, ValidationError):
                    self._facts = None
                    raise EgressError(
                        f"this site's memory of the job ({FILE}) is damaged, so it cannot tell what it has "
                        "answered, and answers nothing more in this job. Submit the job again."
                    ) from None
        return self._facts

    def bind(
        self,
        task: str,
        settings: str,
        run_id: str,
        seed: int,
        roster: Sequence[str],
        *,
        submitter: str = "",
        job: str = "",
        resumes: bool = False,
    ) -> None:
        """Fix which run this job is at its first 'prepare', and check that it stays the same.

        Args:
            settings: digest of the settings in this site's copy of the job, which a server that deploys the
                same job again could have changed.
            submitter, job: of the job, as its meta.json has them.
            resumes: whether the job goes on with the run of an earlier one.

        Raises:
            MessageError: the request is of another run, the settings are others, or nothing was prepared.
        """
        facts, same = self.facts, {"run_id": run_id, "seed": seed, "roster": list(roster)}
        if not facts.run_id:
            if task != "prepare":
                raise MessageError(f"'{task}' came before 'prepare', with which every run starts.")
            self.keep(settings=settings, submitter=submitter, job=job, **same)
            return
        if resumes and (facts.submitter, facts.job) != (submitter, job):
            raise MessageError(
                f"job '{shown(job)}' of '{shown(submitter)}' would go on with a run of job "
                f"'{shown(facts.job)}' of '{shown(facts.submitter)}'. Whoever began a run goes on with it, "
                "with the same job."
            )
        if facts.settings != settings:
            raise MessageError("this site's copy of the job has other settings than at its first 'prepare'.")
        for name, value in same.items():
            if getattr(facts, name) != value:
                raise MessageError(
                    f"the request's {name} is {value}; since its first 'prepare' this job has "
                    f"{getattr(facts, name)}. A job is one run."
                )

    def open_round(self, task: str, place: int, round_number: int, work: str = "") -> None:
        """Open a round for a request of this place, unless it is the one that is open.

        Args:
            task: "fit", or "keys" before it in a masked sum.
            place: `round_number`, or -1 for a canary.
            work: digest of what it asks to be done.

        Raises:
            EgressError: an update of this place has left, or one of a later place was asked for before.
        """
        facts = self.facts
        if task == "fit" and self.was_answered(place, work):
            return
        if facts.place is None or place > facts.place:
            first = place >= FIRST_PLACE
            self.keep(opened=facts.opened + 1, updates=facts.updates + first, place=place, bytes=0)
        elif task == "fit" and place < facts.place:
            raise EgressError(
                f"an update of {_named(place, round_number)} was asked for after {_named(facts.place)}. "
                "Rounds do not go backwards, and a canary comes once, before the first; nothing leaves."
            )
        elif task == "fit" and facts.answered == place:
            raise EgressError(
                f"a second update of {_named(place, round_number)} was asked for. One update leaves in a "
                "round, whatever became of it; nothing more leaves."
            )

    def was_answered(self, place: int, work: str) -> bool:
        """Return whether an update of this place left for the very same work."""
        return bool(work) and self.facts.works.get(str(place)) == work

    def opens(self, place: int) -> bool:
        """Return whether a request of this place would open a round."""
        return self.facts.place is None or place > self.facts.place

    def add(self, size: int, answered: bool, work: str = "") -> None:
        """Remember that a message is about to leave.

        Args:
            size: bytes of tensors and facts.
            answered: whether it is the update of the open round; `work` is its digest then.
        """
        facts = self.facts
        if not answered or facts.place is None:
            self.keep(bytes=facts.bytes + size)
            return
        before = {place: done for place, done in facts.works.items() if int(place) < FIRST_PLACE}
        works = {**before, str(facts.place): work}
        self.keep(bytes=facts.bytes + size, answered=facts.place, works=works)

    def note_task(self, task: str) -> None:
        """Remember that a task came."""
        if task not in self.facts.tasks:
            self.keep(tasks=[*self.facts.tasks, task])

    def keep(self, **changes: Any) -> None:
        """Change fields of `JobFacts` and write the file, on disk before anything else happens."""
        facts = self._facts = self.facts.model_copy(update=changes)
        if self.file is None:
            return
        write_json(self.file, facts.model_dump(mode="json"))


def shown(name: str) -> str:
    """Return a name from outside as a message may hold it."""
    return clean_text(name, 64)


def _named(place: int, round_number: int | None = None) -> str:
    if place == FIRST_PLACE - 1:
        return "the canary"
    return f"round {(place if round_number is None else round_number) + 1}"
