# SPDX-License-Identifier: Apache-2.0
"""The same machinery through `nvflare simulator` as a subprocess."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from medflare.core.errors import RunError
from medflare.core.run_record import read_record
from medflare.recipes import allow_list, simulate, simulator_process
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG, Job
from medflare.recipes.old_runs import stored_run
from medflare.wire.durable import write_json

pytestmark = pytest.mark.simulator
SITES = ("site-1", "site-2")


def toy_job(folder: Path, **toy: Any) -> Path:
    """A job folder with the toy executor in place of ours."""
    controller = {"num_rounds": 2, "canary": True, "min_responses": 1, "straggler_timeout": 120.0}
    Job(title="toy", method="toy", n_clients=2, controller=controller, settings=toy).write(folder)
    client = json.loads((folder / CLIENT_CONFIG).read_text())
    client["executors"][0]["executor"]["path"] = "fed_harness.ToyExecutor"
    write_json(folder / CLIENT_CONFIG, client)
    return folder


def toy_workspace(folder: Path, *more: str) -> Path:
    """A workspace whose own allow-list admits the toy executor."""
    resources = allow_list.resources()
    resources["class_allow_list"] += more
    write_json(folder / "local/resources.json", resources)
    return folder


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("PYTHONPATH", "")  # a checkout that is not installed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), before])))


def test_worker_processes_train_in_the_simulator_and_a_killed_one_costs_a_round(tmp_path: Path) -> None:
    workspace = toy_workspace(tmp_path / "ws", "fed_harness.ToyExecutor")
    die = {"sites": {"site-2": {"die": {"0": str(tmp_path / "canary"), "1": str(tmp_path / "died")}}}}
    (tmp_path / "canary").touch()
    simulator_process.launch(toy_job(tmp_path / "toy", **die), workspace, SITES, timeout=280)
    record = simulate.judge(workspace)
    assert [sorted(entry.accepted) for entry in record.rounds] == [["site-1", "site-2"], ["site-1"]]
    assert "SIGKILL" in record.rounds[1].absent["site-2"]
    folder = workspace / simulator_process.SERVER_FOLDER
    assert list((folder / "tb_events").iterdir())
    ledger = (workspace / "site-1/simulate_job/egress.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"] for line in ledger][:2] == ["prepare", "initialise"]


PROGRAM = """
import sys
from pathlib import Path
from medflare.core.stop_signals import StopSignal, stop_signals_raise
from medflare.recipes import simulate, simulator_process
from medflare.recipes.workspace_lock import locked
job, workspace = map(Path, sys.argv[1:])
try:
    with stop_signals_raise(), locked(workspace), simulate.closing_record(workspace):
        simulator_process.launch(job, workspace, ["site-1", "site-2"], timeout=280)
except StopSignal as stop:
    raise SystemExit(stop.exit_code)
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.faults), signal.SIGKILL])
def test_a_signal_leaves_no_process_of_flare(tmp_path: Path, number: signal.Signals) -> None:
    workspace = toy_workspace(tmp_path / "ws", "fed_harness.ToyExecutor")
    job = toy_job(tmp_path / "toy", hang={"1": 200})
    run = subprocess.Popen([sys.executable, "-c", PROGRAM, str(job), str(workspace)])
    progress = workspace / simulator_process.SERVER_FOLDER / "progress.jsonl"
    until = time.monotonic() + 200
    while not (progress.exists() and '"round": 1, "rounds"' in progress.read_text()):
        assert run.poll() is None, (tmp_path / "ws.log").read_text()
        assert time.monotonic() < until
        time.sleep(0.2)
    running = stored_run(workspace)
    assert running is not None
    assert (running.state, running.live) == ("running", True)  # although the simulator wiped the workspace
    processes = psutil.Process(run.pid).children(recursive=True)
    words = [" ".join(process.cmdline()) for process in processes]
    assert sum("simulator_worker" in line for line in words) == len(SITES)
    assert sum("fed_toy_worker" in line for line in words) == len(SITES)
    run.send_signal(number)
    run.wait(60)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    record = read_record(workspace / simulator_process.SERVER_FOLDER)
    if number == signal.SIGTERM:
        assert (run.returncode, record.status, record.reason) == (143, "stopped", "stopped by SIGTERM")
    else:
        assert record.status == "running"
        ended = stored_run(workspace)
        assert ended is not None
        assert ended.state == "interrupted"  # nobody holds its lock


@pytest.mark.long  # in CI fed_medlora_plus of tests/jobs/test_simulated_jobs.py has such an entry
def test_the_server_scores_with_the_notes_of_its_own_entry_in_the_sites_file(tmp_path: Path) -> None:
    workspace = toy_workspace(tmp_path / "ws", "fed_harness.ToyExecutor", "fed_harness.ToyRounds")
    job = toy_job(tmp_path / "toy")
    server = json.loads((job / SERVER_CONFIG).read_text())
    server["components"][0]["args"] = {"rule": "influence"}
    server["workflows"][0]["path"] = "fed_harness.ToyRounds"
    write_json(job / SERVER_CONFIG, server)
    cohort = {"cohort": {"format": "notes_jsonl", "root": str(tmp_path)}}
    text = json.dumps({"sites": dict.fromkeys((*SITES, "server"), cohort)})
    (workspace / "local/site.yaml").write_text(text)
    simulator_process.launch(job, workspace, SITES, timeout=280)
    record = simulate.judge(workspace)
    assert [sorted(entry.rule["losses"]) for entry in record.rounds] == [list(SITES)] * 2
    assert (workspace / simulator_process.SERVER_FOLDER / "scorer/worker.log").exists()


def test_a_class_outside_the_list_is_refused_and_the_outcome_says_so(tmp_path: Path) -> None:
    workspace = toy_workspace(tmp_path / "ws")
    simulator_process.launch(toy_job(tmp_path / "toy"), workspace, SITES, timeout=280)
    with pytest.raises(RunError, match=r"ToyExecutor.*Log: "):
        simulate.judge(workspace)
