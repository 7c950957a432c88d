# SPDX-License-Identifier: Apache-2.0
"""Runs a job in FLARE's simulator and judges it by what it made, never by the simulator's exit code.

The simulator wipes its workspace except `local/` and `startup/`, and exits with 0 even when no round ran.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from medflare.core.config import read_yaml
from medflare.core.errors import ConfigError, DataError, RunError
from medflare.core.option_values import with_options
from medflare.core.run_record import RunRecord, read_record
from medflare.core.stop_signals import StopSignal
from medflare.core.variables import document_with_absolute_paths
from medflare.data.settings.site import SiteConfig, SitesFile, load_site_file
from medflare.egress.failures import SEE_LOG
from medflare.federation.heartbeat import Heartbeat, Hooks
from medflare.federation.server.scorer import SERVER
from medflare.models.peft_folder import FINAL, readable
from medflare.protections.kit import STARTUP
from medflare.recipes import allow_list
from medflare.recipes.job import Job, write_to_temporary
from medflare.recipes.job_reader import read_job
from medflare.recipes.local_baseline import check_baselines
from medflare.recipes.overrides import override
from medflare.recipes.preset_choice import with_preset
from medflare.recipes.resume import StoredRequest, WorkspaceState
from medflare.recipes.run_check import check_run
from medflare.recipes.run_end import close_record, last_state
from medflare.recipes.simulator_process import SERVER_FOLDER, launch, log_path
from medflare.recipes.workspace_contents import require_free
from medflare.recipes.workspace_lock import in_use, locked
from medflare.recipes.workspace_name import new_workspace
from medflare.reporting.formatting import plural
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts
from medflare.wire.durable import write_json
from medflare.worker.config import SITE_FILE

MOST_SHOWN = 1200
"""Characters of a site's own error that are shown."""
NEW_LINE = "\n  "
EXCEPTION = re.compile(
    r"^(?:[\w.]+\.)?((?!TaskError)\w+(?:Error|Exception): .*(?:\n(?!Traceback|\[| |$).*)*)", re.MULTILINE
)
"""The last line of a trace, with those that its text goes on in; not the executor's word for a worker's."""


def prepare_workspace(workspace: Path, site_file: Path | None) -> None:
    """Write `local/resources.json` and, where a site file is given, `local/site.yaml`.

    Its relative paths are made absolute, because the simulator copies it elsewhere.
    """
    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    write_json(local / "resources.json", allow_list.resources())
    if site_file is not None:
        document, base = read_yaml(site_file), site_file.resolve().parent
        kind = SitesFile if "sites" in document else SiteConfig
        document = document_with_absolute_paths(document, kind, base)
        (local / SITE_FILE).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def run_simulator(
    job_folder: Path,
    workspace: Path | None = None,
    sites: Sequence[str] | None = None,
    site_file: Path | None = None,
    rounds: int | None = None,
    canary: bool | None = None,
    changes: Mapping[str, Any] | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    timeout: float | None = None,
    overwrite: bool = False,
    unseen: Sequence[str] = (),
    local_baseline: bool = False,
    hooks: Hooks | None = None,
) -> RunRecord:
    """Run a job folder over the sites of a site.yaml.

    Args:
        workspace: default `runs/<timestamp>-<job>`; all of it but `local/` and `startup/` is the run's.
        sites: names to take part; default all of the file.
        changes: as `override` takes them.
        on_event: called with each line of the server's progress.
        overwrite: whether a run that the workspace holds may be replaced.
        unseen: sites that will be tested afterwards; remembered for whoever goes on with the run.
        local_baseline: whether each site will train alone afterwards; checked now, and remembered too.
        hooks: commands to start when the run stalls or ends.

    Raises:
        ConfigError: before anything is started, with all problems of the job, or because another run uses the
            workspace or lies there.
        RunError: the run did not complete; the reason and the path of the log.
        StopSignal: a signal stopped the run; all its processes have ended, and its record says so.
    """
    _say(on_event, "checking", "the job, its sites and their data")
    job = read_job(Path(job_folder))
    workspace = (workspace or new_workspace(job.title)).resolve()
    wanted = with_options(changes or {}, num_rounds=rounds, canary=canary)
    rounds = wanted.get("num_rounds")
    known = described_sites(workspace, site_file)
    taking_part = {name: known[name] for name in sites or known if name in known}
    wanted = with_preset(job, wanted, taking_part, on_event)
    job, chosen = check_run(override(job, wanted), known, sites, workspace)
    if local_baseline:
        check_baselines(job, known, chosen, workspace)
    counted = job.controller.get("num_rounds", 0)
    if rounds and counted > rounds and "preset" in (changes or {}):  # a chosen one says so itself
        _say(on_event, "rounds", f"{rounds}, each of {counted // rounds} exchanges: {counted} are counted")
    with held(workspace, overwrite):
        prepare_workspace(workspace, site_file)
        if job.controller.get("protection") == "he":
            make_contexts(workspace / STARTUP, ContextParameters())
        state = WorkspaceState(workspace)
        state.begin(job, StoredRequest(sites=chosen, unseen=list(unseen), local_baseline=local_baseline))
        return _to_its_end(job, state, chosen, on_event, timeout, hooks)


def _say(on_event: Callable[[dict[str, Any]], None] | None, phase: str, reason: str) -> None:
    """Tell whoever watches what happens before the server has a word."""
    if on_event is not None:
        on_event({"time": time.time(), "phase": phase, "reason": reason})


def resume_simulator(
    workspace: Path,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    timeout: float | None = None,
    hooks: Hooks | None = None,
) -> tuple[RunRecord, StoredRequest]:
    """Go on with the run of a workspace that ended before its time.

    A completed one is left as it is, because FLARE would wipe its results; the caller repeats what follows.

    Returns:
        Its record, and what the run had been asked for.

    Raises:
        ConfigError: there is no such run, or it is running.
        RunError: it did not complete this time either, or what a completed one made is gone.
    """
    workspace = workspace.resolve()
    state = WorkspaceState(workspace)
    job, request = state.again()  # before anything is written there
    if state.completed():
        _say(on_event, "completed", "the run had all its rounds; what comes after it is done again")
        return judge(workspace), request
    with locked(workspace):
        prepare_workspace(workspace, None)
        state.point_to()
        return _to_its_end(job, state, request.sites, on_event, timeout, hooks), request


def _to_its_end(
    job: Job,
    state: WorkspaceState,
    sites: Sequence[str],
    on_event: Callable[[dict[str, Any]], None] | None,
    timeout: float | None,
    hooks: Hooks | None,
) -> RunRecord:
    """Start the simulator, and again if its processes died, as often as the job's `max_resumptions` says."""
    left = job.flow.settings.model_validate({"job": job.title, **job.controller}).max_resumptions
    while True:
        try:
            return _launch(job, state, sites, on_event, timeout, hooks)
        except RunError as error:
            if not left or not state.died():
                raise
            left -= 1
            if on_event is not None:
                on_event({"time": time.time(), "phase": "resuming", "reason": str(error), "left": left})
        job, _ = state.again()
        prepare_workspace(state.workspace, None)
        state.point_to()


def _launch(
    job: Job,
    state: WorkspaceState,
    sites: Sequence[str],
    on_event: Callable[[dict[str, Any]], None] | None,
    timeout: float | None,
    hooks: Hooks | None,
) -> RunRecord:
    """Start the simulator; return the record of the completed run."""
    begins = None if job.controller.get("resumes") else state.parties
    workspace = state.workspace
    with (
        write_to_temporary(job) as holder,
        telling(hooks or Hooks(), job, workspace, on_event) as take,
        closing_record(workspace),
    ):
        folder = Path(holder) / job.title
        _say(on_event, "starting", f"FLARE's simulator with {plural(len(sites), 'site')}")
        launch(folder, workspace, sites, on_event=take, timeout=timeout, discard=begins, method=job.method)
    return judge(workspace)


@contextmanager
def held(workspace: Path, overwrite: bool) -> Iterator[None]:
    """Hold a workspace for a run that may delete what lies there.

    Raises:
        ConfigError: another run uses it, or something lies there that shall stay.
    """
    if not in_use(workspace):
        require_free(workspace, overwrite)  # before anything is written there
    with locked(workspace):
        require_free(workspace, overwrite)
        yield


def described_sites(workspace: Path, site_file: Path | None) -> dict[str, SiteConfig]:
    """Return the sites that a run in a workspace can have; nothing is written.

    An entry `server` is no site: it names what the server itself needs (`federation.scorer`).

    Args:
        site_file: default: the workspace's own, `local/site.yaml`.

    Raises:
        ConfigError: it describes one site without a name.
    """
    file = site_file or workspace / "local" / SITE_FILE
    sites = {name: config for name, config in load_site_file(file).items() if name != SERVER}
    if list(sites) == [""]:
        raise ConfigError(
            f"{file}: describes one site without a name. The simulator needs 'sites:' with one block for "
            "each site name."
        )
    return sites


@contextmanager
def telling(
    hooks: Hooks, job: Job, workspace: Path, on_event: Callable[[dict[str, Any]], None] | None
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Start the hooks' commands when a run stalls or ends, however it ends; yields what takes its events.

    From here and not from the simulator's server: that may be what hangs, or was ended.
    """
    deadline = job.flow.settings.model_validate({"job": job.title, **job.controller}).deadline
    facts = {"job": job.title, "workspace": str(workspace)}
    heartbeat = Heartbeat(hooks, deadline, facts, lambda text: logging.getLogger(__name__).warning(text))

    def take(event: dict[str, Any]) -> None:
        heartbeat.progress(event)
        if on_event is not None:
            on_event(event)

    heartbeat.start()
    try:
        yield take
    finally:
        try:
            record = read_record(workspace / SERVER_FOLDER)
            heartbeat.facts["run_id"] = record.run_id
            heartbeat.end(record.status, record.reason)
        except DataError:
            heartbeat.end("failed", "the server wrote no record")


@contextmanager
def closing_record(workspace: Path) -> Iterator[None]:
    """Write how a run ended that was stopped, or ended by itself, before its server could write it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        signal_stop = stop if isinstance(stop, StopSignal) else StopSignal(signal.SIGINT)
        close_record(workspace, "stopped", signal_stop.reason)
        text = f"{signal_stop.reason}. {last_state(workspace)} Log: {log_path(workspace)}"
        raise StopSignal(signal_stop.number, text) from None
    except RunError as error:
        close_record(workspace, "failed", str(error))
        raise
    close_record(
        workspace, "failed", f"the simulator ended without a word.{_last_error(log_path(workspace))}"
    )


def judge(workspace: Path) -> RunRecord:
    """Return the record of a completed run.

    Raises:
        RunError: it did not complete, or its adapter cannot be opened; with the reason and the log.
    """
    folder, log = workspace / SERVER_FOLDER, log_path(workspace)
    if not (folder / "run.json").exists():
        raise RunError(f"no round ran: the server wrote no run.json.{_last_error(log)} Log: {log}")
    record = read_record(folder)
    if record.status != "completed":
        reason = record.reason or "the run ended without a word."
        more = _at_the_sites(workspace, reason) if record.status == "failed" else _last_error(log)
        between = NEW_LINE if NEW_LINE in more else " "
        raise RunError(f"the run is {record.status}: {reason}{more}{between}Log: {log}")
    result = folder / record.artefacts.get("final", f"result/{FINAL}")
    if not readable(result):
        raise RunError(f"the run completed but its adapter cannot be opened: {result}")
    return record


def _at_the_sites(workspace: Path, reason: str) -> str:
    """Return what sites withheld from their server: here one person has all of them, and their files."""
    if SEE_LOG not in reason:
        return ""
    found = []
    for log in sorted(workspace.glob("*/simulate_job/worker/worker.log")):
        site = log.relative_to(workspace).parts[0]
        texts = EXCEPTION.findall(log.read_text(encoding="utf-8", errors="replace"))
        if texts and f"{site}: E" in reason:  # not what a site got over before
            found.append(f"{NEW_LINE}{site}: {texts[-1].strip()[:MOST_SHOWN]} ({log})")
    return "".join(found)


def _last_error(log: Path) -> str:
    """Return the last line of the log that names an error."""
    if not log.exists():
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return f" Last error: {lines[-1].strip()[:600]}" if lines else ""
