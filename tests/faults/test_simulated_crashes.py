# SPDX-License-Identifier: Apache-2.0
"""Every process of a simulated run is killed at a drawn moment; the run goes on to the same adapter.

Not part of CI: `make test-faults`. FAULTS_KILLS is how often each job is killed, FAULTS_SEED draws when.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from simulated_jobs import JOBS, ROUNDS, SMALL

from medflare.core.run_record import read_record
from medflare.recipes.resume import WorkspaceState
from medflare.recipes.simulate import resume_simulator, run_simulator
from medflare.recipes.simulator_process import SERVER_FOLDER

KILLS = int(os.environ.get("FAULTS_KILLS", "3"))
SEED = int(os.environ.get("FAULTS_SEED", "7"))
LONG = 900.0
START = """
import json, sys
from pathlib import Path
from medflare.recipes.simulate import run_simulator
job, workspace, file, sites, rounds, changes = json.loads(sys.argv[1])
run_simulator(Path(job), Path(workspace), sites, Path(file), rounds, changes=changes, timeout=900)
"""


def adapter(workspace: Path) -> dict[str, str]:
    """Digest of every tensor file of the server's result."""
    folder = workspace / SERVER_FOLDER / "result"
    files = sorted(folder.glob("*/*.safetensors"))
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, at once."""
    parent = psutil.Process(process.pid)
    every = [*parent.children(recursive=True), parent]
    for one in every:
        one.suspend()
    for one in {*every, *parent.children(recursive=True)}:
        one.kill()
    process.wait()
    psutil.wait_procs(every, timeout=30)


def killed(arguments: str, workspace: Path, log: Path, wait: Callable[[float], bool]) -> bool:
    """Start a run and kill it when `wait` says so of the seconds since its first state.

    Returns:
        Whether it came so far.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", START, arguments], stdout=output, stderr=output, start_new_session=True
        )
    began: float | None = None
    latest = WorkspaceState(workspace).run / "state/latest.json"
    until = time.monotonic() + LONG
    while process.poll() is None:
        assert time.monotonic() < until
        if began is None and latest.exists():
            began = time.monotonic()
        if began is not None and wait(time.monotonic() - began):
            kill_everything(process)
            return True
        time.sleep(0.01)
    return False


@pytest.mark.fault(
    "SIGKILL of every process of a simulated run",
    phase="drawn moments: {name}",
    result="equal after `resume`",
)
@pytest.mark.simulator
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_killed_run_goes_on_to_the_same_adapter(name: str, tmp_path: Path) -> None:
    job, whole = SMALL[name], tmp_path / "whole"
    job.write(tmp_path)
    file, sites = tmp_path / "site.yaml", list(job.sites)
    run_simulator(JOBS / name, whole, sites, file, ROUNDS, changes=job.changes, timeout=LONG)
    record, expected = read_record(whole / SERVER_FOLDER), adapter(whole)
    assert expected
    seconds = sum(entry.seconds for entry in record.rounds)
    moments, kills = random.Random(SEED), 0
    for number in range(KILLS):
        workspace, moment = tmp_path / f"ws-{number}", moments.uniform(0, seconds)
        request = [str(JOBS / name), str(workspace), str(file), sites, ROUNDS, job.changes]
        kills += killed(json.dumps(request), workspace, tmp_path / "log", lambda after, at=moment: after > at)
        if read_record(workspace / SERVER_FOLDER).status != "completed":
            again, _ = resume_simulator(workspace, timeout=LONG)
            assert again.status == "completed"
            assert again.resumptions
        assert adapter(workspace) == expected, f"killed {moment:.2f} s after the first state"
    assert kills, "no run was killed in time; raise FAULTS_KILLS"
