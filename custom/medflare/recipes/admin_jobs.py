# SPDX-License-Identifier: Apache-2.0
"""Jobs at a server as an admin sees them, through FLARE's admin API.

Nobody here trusts the server: what it says of a job is parsed by one model and cleaned before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, Field, ValidationError

from medflare.core.errors import ConfigError, RunError
from medflare.egress.failures import clean_text
from medflare.recipes.admin_session import admin_session
from medflare.recipes.job import write_to_temporary
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

MOST_LOG = 1_000_000
"""Characters of a log that are shown; its end counts."""
CleanText = Annotated[str, Field(max_length=1000), AfterValidator(lambda text: clean_text(text, 200))]


class ServerJob(BaseModel):
    """A job as a server describes it. Keys that are not listed here are left out."""

    job: CleanText = Field(validation_alias=AliasChoices("job_id", "job"))
    name: CleanText = Field("", validation_alias=AliasChoices("job_name", "name"))
    status: CleanText = ""
    submitter: CleanText = Field("", validation_alias=AliasChoices("submitter_name", "submitter"))
    submitted: CleanText = Field(
        "", validation_alias=AliasChoices("submit_time_iso", "submit_time", "submitted")
    )
    duration: CleanText = ""


def submit_job(kit: Path, folder: Path, changes: Mapping[str, Any]) -> str:
    """Check a job folder with some values changed, submit it, and return FLARE's id of the job.

    Raises:
        ConfigError: the kit is none, or the job cannot run, with all problems; nothing was sent then.
        RunError: the server does not answer, or refuses.
    """
    job = override(read_job(folder), changes)
    check_job(job)
    with write_to_temporary(job) as place, _session(kit, f"job {job.title} was not submitted") as session:
        return clean_text(str(session.submit_job(str(Path(place) / job.title))), 100)


def list_jobs(kit: Path, most: int = 20) -> list[ServerJob]:
    """Return the newest jobs that the server has, newest first."""
    with _session(kit, "the jobs are not known") as session:
        return [_facts(entry) for entry in session.list_jobs(limit=most, reverse=True)]


def job_facts(kit: Path, job: str) -> tuple[ServerJob, dict[str, str]]:
    """Return what the server says of a job, and of one that runs how far it is: phase, round and others."""
    with _session(kit, f"nothing is known of job {job}") as session:
        facts = _facts(session.get_job_meta(job))
        if facts.status != "RUNNING":
            return facts, {}
        shown = session.show_stats(job, "server")
    progress = shown.get("server", {}).get("Progress", {}) if isinstance(shown, dict) else {}
    words = {clean_text(str(k), 40): clean_text(str(v), 200) for k, v in list(dict(progress).items())[:50]}
    return facts, words


def job_logs(kit: Path, job: str, target: str, lines: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the last lines of the logs of a job by party, and why others have none.

    Args:
        target: `server`, `all`, or a site.
    """
    with _session(kit, f"no log of job {job}") as session:
        answer = session.get_job_logs(job, target, tail_lines=lines)
    logs, missing = (answer.get(key) or {} for key in ("logs", "unavailable"))
    shown = {
        clean_text(str(name), 100): clean_text(str(text)[-MOST_LOG:], MOST_LOG) for name, text in logs.items()
    }
    return shown, {clean_text(str(name), 100): clean_text(str(why), 500) for name, why in missing.items()}


def abort_job(kit: Path, job: str) -> None:
    """End a job; its run can be gone on with later."""
    with _session(kit, f"job {job} was not ended") as session:
        session.abort_job(job)


def download_job(kit: Path, job: str, folder: Path) -> Path:
    """Fetch what a job left at the server; return the folder that holds `run.json`.

    Raises:
        ConfigError: the folder has a result of this job already.
        RunError: there is no such job, or it has no result yet.
    """
    if (folder / job).exists():
        raise ConfigError(f"{folder / job}: is there already. Remove it, or name another folder with --to.")
    folder.mkdir(parents=True, exist_ok=True)
    with _session(kit, f"job {job} was not downloaded") as session:
        place = Path(session.download_job_result(job, destination=str(folder))).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise RunError(f"job {job}: FLARE wrote the result to {place}, which is outside {folder}.")
    return place / "workspace"


@contextmanager
def _session(kit: Path, otherwise: str) -> Iterator[Session]:
    """Provide an admin's session; what FLARE raises in it becomes a RunError that begins with `otherwise`."""
    with admin_session(kit) as session:
        try:
            yield session
        except (ConfigError, RunError):
            raise
        except Exception as error:  # FLARE has a dozen classes without a common base
            why = clean_text(f"{type(error).__name__}: {error}", 300)
            raise RunError(f"{otherwise} ({why}). `medflare job status` lists the jobs there are.") from None


def _facts(entry: Any) -> ServerJob:
    try:
        return ServerJob.model_validate(entry)
    except ValidationError as error:
        raise RunError(f"the server describes a job as medflare cannot read it: {error}") from None
