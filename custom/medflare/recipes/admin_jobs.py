# SPDX-License-Identifier: Apache-2.0
"""Jobs at a server as an admin sees them, through FLARE's admin API.

Nobody here trusts the server: what it says of a job is parsed by one model and cleaned before it is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, ValidationError

from medflare.core.errors import ConfigError, RunError
from medflare.egress.failures import clean_text
from medflare.recipes.admin_session import ServerAwayError, asking_session
from medflare.recipes.admin_submissions import digests, remember_submission
from medflare.recipes.job import write_to_temporary
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

MOST_LOG = 1_000_000
"""Characters of a log that are shown; its end counts."""
WATCH_SECONDS = 5.0
"""Between two looks at a job."""
MISSES = 3
"""Looks in a row at which a job may be missing that is there: FLARE writes its file anew where it lies."""
SECONDS_OF_A_MISS = 1.0
"""Before the next look at a job that was not seen yet, whose id may be wrong."""
ENDED = ("FINISHED", "FAILED", "ABANDONED")
"""Beginnings of FLARE's words on a job that has ended."""
NEVER_BEGAN = "FINISHED:CAN_NOT_SCHEDULE"
"""FLARE's word on a job that waited for sites in vain."""
NOT_BEGUN = ("SUBMITTED", NEVER_BEGAN)
COMPLETED = "FINISHED:COMPLETED"
"""FLARE's word on a job whose processes ended well."""
WAITS_SHOWN = "`medflare job status` with its id says what it waits for, or waited."
AWAY = "the server does not answer; it is waited for"
CleanText = Annotated[str, Field(max_length=1000), AfterValidator(lambda text: clean_text(text, 200))]
SCHEDULED, GIVEN_UP = "scheduled", "exceeded max schedule count"
"""FLARE's notes where it begins a job, and where it tries no more."""


def _newest_reason(history: Any) -> str:
    """Return why FLARE did not begin a job when it last tried; empty where it has not tried, or began it.

    Args:
        history: lines "time: reason", the newest last.
    """
    lines = history[-2:] if isinstance(history, list) else []
    reasons = [str(line)[:1000].partition(": ")[2] for line in lines]
    return next((why for why in reversed(reasons) if not why.startswith((SCHEDULED, GIVEN_UP))), "")


class ServerJob(BaseModel):
    """A job as a server describes it. Keys that are not listed here are left out.

    Attributes:
        waits: for what, while the job has not begun.
        started: when it began; empty before, None where the server does not say.
    """

    job: CleanText = Field(validation_alias=AliasChoices("job_id", "job"))
    name: CleanText = Field("", validation_alias=AliasChoices("job_name", "name"))
    status: CleanText = ""
    submitter: CleanText = Field("", validation_alias=AliasChoices("submitter_name", "submitter"))
    submitted: CleanText = Field(
        "", validation_alias=AliasChoices("submit_time_iso", "submit_time", "submitted")
    )
    duration: CleanText = ""
    waits: Annotated[CleanText, BeforeValidator(_newest_reason)] = Field(
        "", validation_alias="schedule_history", exclude=True
    )
    started: Annotated[CleanText, BeforeValidator(lambda time: str(time)[:1000])] | None = Field(
        None, validation_alias="start_time", exclude=True
    )

    @property
    def never_began(self) -> bool:
        """Whether its processes were never started: it has no run, no log and no result."""
        return self.started == ""


def submit_job(
    kit: Path, folder: Path, changes: Mapping[str, Any], say: Callable[[str], None] = lambda line: None
) -> str:
    """Check a job folder with some values changed, submit it, and return FLARE's id of the job.

    Args:
        say: takes a line where the job has to wait for sites.

    Raises:
        ConfigError: the kit is none, or the job cannot run, with all problems; nothing was sent then.
        RunError: the server does not answer, or refuses.
    """
    job = override(read_job(folder), changes)
    check_job(job)
    with (
        write_to_temporary(job) as place,
        asking_session(kit, f"job {job.title} was not submitted") as session,
    ):
        written = Path(place) / job.title
        files = digests(written)
        number = clean_text(str(session.submit_job(str(written))), 100)
        remember_submission(kit, number, files)
        if line := _awaited_sites(session, job.least_sites):
            say(line)
        return number


def _awaited_sites(session: Session, least: int) -> str:
    """Return for which sites a submitted job waits; empty where there are enough, or that is not known.

    Args:
        least: connected sites without which FLARE does not begin it.
    """
    try:
        there = sorted(clean_text(str(site.name), 100) for site in session.get_system_info().client_info)
    except Exception:  # the job is there, and its id must not be lost for a remark
        return ""
    if len(there) >= least:
        return ""
    return (
        f"It begins when {least} sites are connected; now there are {len(there)}"
        + (f" ({', '.join(there)})" if there else "")
        + ". `--set min_responses=N` submits a job that N sites can begin."
    )


def list_jobs(kit: Path, most: int = 20) -> list[ServerJob]:
    """Return the newest jobs that the server has, newest first."""
    with asking_session(kit, "the jobs are not known") as session:
        return [_facts(entry) for entry in session.list_jobs(limit=most, reverse=True)]


def job_facts(kit: Path, job: str) -> tuple[ServerJob, dict[str, str]]:
    """Return what the server says of a job, and of one that runs how far it is: phase, round and others."""
    with asking_session(kit, f"nothing is known of job {job}") as session:
        return _look(session, job)


def never_began(session: Session, job: str) -> bool:
    """Return whether the server says that a job never began; False where it says nothing."""
    with suppress(Exception):  # what is asked for next tells what is wrong
        return _facts(session.get_job_meta(job)).never_began
    return False


def _look(session: Session, job: str) -> tuple[ServerJob, dict[str, str]]:
    from nvflare.fuel.flare_api.api_spec import InternalError, JobNotFound, JobNotRunning, NoReply

    facts = _facts(session.get_job_meta(job))
    if facts.status != "RUNNING":
        waits = facts.waits if facts.never_began or facts.status in NOT_BEGUN else ""
        return facts, {"waits": waits} if waits else {}
    try:
        shown = session.show_stats(job, "server")
    except (JobNotRunning, JobNotFound, NoReply, InternalError):
        # It ended in between, or does: how far a job is says its own process, which may answer no more.
        return facts, {}
    server = shown.get("server") if isinstance(shown, Mapping) else None
    progress = server.get("Progress") if isinstance(server, Mapping) else None
    entries = list(progress.items())[:50] if isinstance(progress, Mapping) else []
    return facts, {clean_text(str(name), 40): clean_text(str(value), 200) for name, value in entries}


def wait_for_job(
    kit: Path, job: str, say: Callable[[str], None] = lambda line: None, seconds: float = math.inf
) -> str:
    """Return FLARE's last word on a job once it has ended.

    A server that is started again meanwhile, or does not answer for a while, is waited for.

    Args:
        say: takes a line whenever the job is in another state, phase or round, and when the server stops
            answering.
        seconds: after which nobody waits any more.

    Raises:
        ServerAwayError: the server does not answer from the beginning on.
        RunError: it has no such job, or the time is over.
    """
    watch = _Watch(job, say, time.monotonic() + seconds)
    while True:
        try:
            with asking_session(kit, f"nothing is known of job {job}") as session:
                return watch.until_end(session)
        except ServerAwayError as error:
            watch.server_away(error)


class _Watch:
    """The looks of somebody who waits for a job, and the last line that they were told."""

    def __init__(self, job: str, say: Callable[[str], None], ends: float) -> None:
        self._job, self._say, self._ends = job, say, ends
        self._shown, self._missing = "", 0

    def until_end(self, session: Session) -> str:
        """Look at the job until it has ended."""
        while True:
            if (facts := self._state(session)) and facts.status.startswith(ENDED):
                return facts.status
            self._sleep()

    def server_away(self, error: ServerAwayError) -> None:
        """Say so once and wait; raise the error where nothing is known of the job yet."""
        if not self._shown:
            raise error
        if self._shown != AWAY:
            self._say(f"{AWAY} ({error})")
        self._shown = AWAY
        self._sleep()

    def _state(self, session: Session) -> ServerJob | None:
        """Return what the server says of the job, None where it knows of none for the moment."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        try:
            facts, progress = _look(session, self._job)
        except JobNotFound:
            self._missing += 1
            if self._missing > MISSES:
                raise
            return None
        line, self._missing = _line(facts, progress), 0
        if line != self._shown:
            self._say(line)
        self._shown = line
        return facts

    def _sleep(self) -> None:
        pause = WATCH_SECONDS if self._shown else SECONDS_OF_A_MISS
        if time.monotonic() + pause > self._ends:
            job = self._job
            raise RunError(f"job {job} has not ended. It goes on; `medflare job wait {job}` waits again.")
        time.sleep(pause)


def _line(facts: ServerJob, progress: Mapping[str, str]) -> str:
    """Return a job's state, and the phase and round of one that runs, in words."""
    words = [facts.status, progress.get("waits", ""), progress.get("phase", "")]
    number, rounds = progress.get("round", ""), progress.get("rounds", "")
    if number.isdecimal() and len(number) < 10:
        words.append(f"round {int(number) + 1}" + (f" of {rounds}" if rounds.isdecimal() else ""))
    return ", ".join(word for word in words if word)


def job_logs(kit: Path, job: str, target: str, lines: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the last lines of the logs of a job by party, and why others have none.

    Args:
        target: `server`, `all`, or a site.
    """
    with asking_session(kit, f"no log of job {job}") as session:
        answer = session.get_job_logs(job, target, tail_lines=lines)
    logs, missing = (answer.get(key) or {} for key in ("logs", "unavailable"))
    shown = {
        clean_text(str(name), 100): clean_text(str(text)[-MOST_LOG:], MOST_LOG) for name, text in logs.items()
    }
    return shown, {clean_text(str(name), 100): clean_text(str(why), 500) for name, why in missing.items()}


def abort_job(kit: Path, job: str) -> bool:
    """End a job; return whether it had begun, so that its run can be gone on with later."""
    with asking_session(kit, f"job {job} was not ended") as session:
        begun = not never_began(session, job)
        session.abort_job(job)
        return begun


def download_job(kit: Path, job: str, folder: Path) -> Path:
    """Fetch what a job left at the server; return the folder that holds `run.json`.

    Raises:
        ConfigError: the folder has a result of this job already.
        RunError: there is no such job, it has no result yet, or never began.
    """
    if (folder / job).exists():
        raise ConfigError(f"{folder / job}: is there already. Remove it, or name another folder with --to.")
    folder.mkdir(parents=True, exist_ok=True)
    with asking_session(kit, f"job {job} was not downloaded") as session:
        if never_began(session, job):
            raise RunError(f"job {job} has not begun, so there is no result. {WAITS_SHOWN}")
        place = Path(session.download_job_result(job, destination=str(folder))).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise RunError(f"job {job}: FLARE wrote the result to {place}, which is outside {folder}.")
    return place / "workspace"


def _facts(entry: Any) -> ServerJob:
    try:
        return ServerJob.model_validate(entry)
    except ValidationError as error:
        raise RunError(f"the server describes a job as medflare cannot read it: {error}") from None
