# SPDX-License-Identifier: Apache-2.0
"""The plug is pulled at a deployed run, and an admin goes on with it: the adapter is the undisturbed one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path

import deployed_jobs
import psutil
import pytest
from deployed import ADMIN, SERVER, SITES, Federation, Finished
from deployed_programs import LONG, environment
from deployed_programs import run as program

from medflare.wire.files import load_tensors


def submitted(federation: Federation, folder: Path, **changed: object) -> str:
    """The id of a job like `fed_medlora_run`, which nobody disturbs."""
    return federation.submit(deployed_jobs.tiny_job(folder, "fed_medlora", **changed))


def medflare(*words: object) -> list[dict[str, object]] | dict[str, object]:
    """What a command prints as JSON."""
    printed: list[dict[str, object]] | dict[str, object] = json.loads(
        program("medflare", *map(str, words), "--json").stdout
    )
    return printed


def resumed(federation: Federation, job_id: str, folder: Path) -> Finished:
    """The job that goes on with a run, at its end."""
    answer = medflare("resume", job_id, "--kit", federation.kits / ADMIN)
    assert isinstance(answer, dict)
    return federation.finished(str(answer["job"]), folder / "out")


def states(kit: Path) -> dict[str, str]:
    """The true state of every run of a kit."""
    rows = medflare("runs", "list", kit)
    return {str(row["run"]): str(row["state"]) for row in rows if isinstance(row, dict)}


def tensors(run: Finished) -> dict[str, list[float]]:
    """Every value of the final adapter."""
    adapter = load_tensors(run.folder / run.record.artefacts["final"] / "adapter_model.safetensors")[0]
    return {name: value.flatten().tolist() for name, value in adapter.items()}


@pytest.fixture
def undisturbed(fed_medlora_run: Finished) -> dict[str, list[float]]:
    """The adapter of the run that nobody disturbs."""
    return tensors(fed_medlora_run)


TRIES = 3
"""Jobs in which a process is looked for: on a busy machine one may end before it is found."""


def killed_in_training(federation: Federation, folder: Path, who: str) -> str:
    """The id of a job of which a process was killed in the second round."""
    for number in range(TRIES):
        job_id = submitted(federation, folder / str(number))
        federation.worker("site-2")
        process = federation.job_process(who)  # looked for before the round, which is short
        federation.wait_event(job_id, phase="round", round=1)
        federation.wait_training("site-2", job_id)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if federation.wait(job_id) != "FINISHED:COMPLETED":
            return job_id
    raise AssertionError(f"{TRIES} jobs completed before their process of {who} was killed")


@pytest.mark.fault(
    "the job process of {who} is killed", phase="training, mTLS", result="equal after `resume`"
)
@pytest.mark.parametrize("who", [SERVER, pytest.param("site-2", marks=pytest.mark.faults)])
def test_a_killed_job_process_costs_time_and_nothing_else(
    federation: Federation, undisturbed: dict[str, list[float]], tmp_path: Path, who: str
) -> None:
    job_id = killed_in_training(federation, tmp_path, who)
    rows = {row["run"]: row for row in medflare("runs", "list", federation.kits / SERVER)}
    assert rows[job_id]["state"] in ("interrupted", "stopped")
    assert rows[job_id]["exchanges"] in (1, 2)
    run = resumed(federation, job_id, tmp_path)
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed")
    assert [len(entry.accepted) for entry in run.record.rounds] == [3, 3]
    assert run.record.resumptions[0].job == run.job_id
    assert {item.site for item in run.record.evaluations} == set(SITES)
    assert tensors(run) == undisturbed


@pytest.mark.fault(
    "FLARE's own process of {who} is killed",
    phase="training, mTLS",
    result="equal after `reconcile`, a new start and `resume`",
)
@pytest.mark.faults
@pytest.mark.parametrize("who", [SERVER, "site-2"])
def test_a_killed_parent_is_started_again_and_the_run_goes_on(
    federation: Federation, undisturbed: dict[str, list[float]], tmp_path: Path, who: str
) -> None:
    """FLARE's own process dies and leaves the job's process behind; `runs reconcile` ends that one.

    A site's new process gets no job that began without it, so the server waits for it until the deadline.
    """
    job_id = submitted(federation, tmp_path / "job", deadline=90.0)
    federation.worker("site-2")
    federation.wait_event(job_id, phase="round", round=1)
    left = federation.job_process(who)
    federation.kill_parent(who)
    kit = federation.kits / who
    try:
        found = states(kit)[job_id]
        medflare("runs", "reconcile", kit)
    finally:
        federation.start(who)
    assert found in ("orphaned", "interrupted", "idle"), "FLARE may have ended it by itself"
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE, "nobody else may reap it"
    assert states(kit)[job_id] in ("stopped", "idle", "running")
    federation.wait_ready(*SITES)
    if who != SERVER:
        federation.wait(job_id)
    run = resumed(federation, job_id, tmp_path)
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed")
    assert tensors(run) == undisturbed


@pytest.mark.fault("the job process of {who} stands still for 10 s", phase="training, mTLS", result="equal")
@pytest.mark.faults
@pytest.mark.parametrize("who", [SERVER, "site-2"])
def test_a_frozen_job_process_costs_its_seconds_and_nothing_else(
    federation: Federation, undisturbed: dict[str, list[float]], tmp_path: Path, who: str
) -> None:
    """SIGSTOP for ten seconds, as of a machine that swaps or a virtual one that is moved."""
    job_id = submitted(federation, tmp_path / "job")
    federation.worker("site-2")
    federation.wait_event(job_id, phase="round", round=1)
    frozen = federation.job_process(who)
    frozen.suspend()
    time.sleep(10)
    frozen.resume()
    run = federation.finished(job_id, tmp_path / "out")
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed")
    assert [len(entry.accepted) for entry in run.record.rounds] == [3, 3]
    assert tensors(run) == undisturbed


@pytest.mark.fault("a run is paused", phase="mTLS", result="completes after `resume`, no round twice")
@pytest.mark.faults
def test_a_paused_run_goes_on(federation: Federation, tmp_path: Path) -> None:
    # A command takes seconds to start and to log in.
    job_id = submitted(federation, tmp_path / "job", steps=6, num_rounds=14)
    federation.wait_event(job_id, phase="round", round=0)
    medflare("pause", job_id, "--kit", federation.kits / ADMIN)
    paused = federation.finished(job_id, tmp_path / "paused")
    assert paused.record.status == "paused"
    done = len(paused.record.rounds)
    assert 0 < done < 14
    run = resumed(federation, job_id, tmp_path)
    assert (run.record.status, len(run.record.rounds)) == ("completed", 14)
    assert run.record.resumptions[0].exchange == done


@pytest.mark.faults
@pytest.mark.fault(
    "the job process of {who} is killed, max_resumptions=2",
    phase="training, mTLS",
    result="equal: `resume --watch` goes on by itself",
)
@pytest.mark.parametrize("who", [SERVER, "site-2"])
def test_a_watched_run_goes_on_by_itself(
    federation: Federation, undisturbed: dict[str, list[float]], tmp_path: Path, who: str
) -> None:
    job_id = submitted(federation, tmp_path / "job", max_resumptions=2)
    watcher = subprocess.Popen(
        ["medflare", "resume", job_id, "--kit", str(federation.kits / ADMIN), "--watch", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        federation.worker("site-2")
        federation.wait_event(job_id, phase="round", round=1)
        federation.job_process(who).kill()
        printed, _ = watcher.communicate(timeout=LONG)
    finally:
        watcher.kill()
    assert watcher.returncode == 0
    last = str(json.loads(printed)["job"])
    assert last != job_id
    run = federation.finished(last, tmp_path / "out")
    assert (run.record.status, len(run.record.resumptions)) == ("completed", 1)
    assert tensors(run) == undisturbed
