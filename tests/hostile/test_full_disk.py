# SPDX-License-Identifier: Apache-2.0
"""A full disk costs a site its rounds, and a server its run by name, with reason and last adapter written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import Federation
from fed_toy import ToyLearner
from lying_server import LyingServer
from safetensors import SafetensorError

from medflare.data.settings.site import SiteConfig
from medflare.egress.failures import DISK_BROKEN, DISK_FULL, FailureCode, failure_of
from medflare.wire import disk_space, durable, files
from medflare.wire.disk_space import DiskFullError, DiskReserve, is_disk_full
from medflare.wire.durable import read_json, write_json
from medflare.wire.files import load_tensors, save_tensors
from medflare.worker import config as worker_config

HERE = Path(__file__).parent
PROGRAM = HERE / "full_disk_program.py"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/patients/p1.safetensors")


def run_on_a_small_disk(root: Path, party: str, worker: str, fault: str = "full") -> dict[str, Any]:
    """Run the program with a real disk of some MB for one party; skip where none can be mounted."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    probe = "mount -t tmpfs -o size=1m none " + str(root)
    if shutil.which("unshare") is None or subprocess.run([*unshare, "sh", "-c", probe]).returncode:
        pytest.skip("this machine lets nobody mount a small disk in a namespace of its own")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "federation"), *filter(None, sys.path)])
    done = subprocess.run(
        [*unshare, sys.executable, str(PROGRAM), str(root), party, worker, fault],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.fault(
    "full disk at the server (a real mount)",
    phase="mid-run",
    result="ends by name; adapter and record are written",
)
def test_a_server_with_a_full_disk_ends_by_name_and_keeps_the_adapter(tmp_path: Path) -> None:
    result = run_on_a_small_disk(tmp_path, "server", "thread")
    assert result["status"] == "failed"
    assert result["reason"].startswith("the disk of the server is full: 0 MB free in ")
    assert result["fatal"] == [result["reason"]]
    assert result["adapter"]
    assert not result["reserve"]


@pytest.mark.fault(
    "full disk at a site (a real mount)",
    phase="mid-run, worker in a {worker}",
    result="misses rounds with E33, takes part again",
)
@pytest.mark.parametrize("worker", ["thread", pytest.param("process", marks=pytest.mark.faults)])
def test_a_site_with_a_full_disk_misses_rounds_and_comes_back(tmp_path: Path, worker: str) -> None:
    result = run_on_a_small_disk(tmp_path, "site-2", worker)
    assert result["status"] == "completed", result["reason"]
    reasons = [absent.get("site-2") for absent in result["absent"]]
    assert f"E33 {DISK_FULL}" in reasons
    assert reasons[0] is None
    assert reasons[-1] is None
    assert not any(absent.keys() - {"site-2"} for absent in result["absent"])
    assert "No space left on device" in result["trace"]
    failures = [line for line in map(json.loads, result["ledger"].splitlines()) if line["event"] == "failure"]
    assert {line["code"] for line in failures} == {33}


@pytest.mark.faults
@pytest.mark.fault(
    "read-only disk at a site (a real mount)",
    phase="mid-run",
    result="misses rounds with E35, takes part again",
)
def test_a_site_with_a_read_only_disk_misses_rounds_and_comes_back(tmp_path: Path) -> None:
    result = run_on_a_small_disk(tmp_path, "site-2", "thread", "read-only")
    assert result["status"] == "completed", result["reason"]
    assert (result["absent"][0], result["absent"][-1]) == ({}, {})
    assert {f"E35 {DISK_BROKEN}"} == {reason for absent in result["absent"] for reason in absent.values()}
    assert not any(absent.keys() - {"site-2"} for absent in result["absent"])


@pytest.mark.faults
@pytest.mark.fault("read-only disk at the server (a real mount)", phase="mid-run", result="ends by name")
def test_a_server_with_a_read_only_disk_ends_by_name(tmp_path: Path) -> None:
    result = run_on_a_small_disk(tmp_path, "server", "thread", "read-only")
    assert len(result["fatal"]) == 1
    assert result["fatal"][0].startswith("the disk of the server is read-only, or fails: [Errno 30] Read")


@pytest.mark.fault(
    "full disk of a site's state folder",
    phase="saving local state",
    result="written into the space kept for it; E33 next",
)
def test_on_a_full_disk_a_site_writes_its_state_into_the_space_kept_for_it(tmp_path: Path) -> None:
    outcome = run_on_a_small_disk(tmp_path, "state", "thread")
    assert outcome["status"] == "completed", outcome["reason"]
    assert "state" in outcome["reserves"], "in the site's own folder `state`"
    # Round 1 is saved into that space, which cannot be taken again: round 2 is refused. Then there is room.
    assert outcome["absent"] == [{}, {}, {"site-2": f"E33 {DISK_FULL}"}, {}, {}]


@pytest.fixture
def with_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lying_server: Callable[..., LyingServer]
) -> tuple[LyingServer, Path]:
    """A server, and the folder `state` of its only site, beside the kit."""
    server, state = lying_server(sites=("site-1",)), tmp_path / "state"
    local = server.root / "site-1" / "local"
    local.mkdir(parents=True)
    (local / "site.yaml").touch()
    settings = SiteConfig.model_construct(name="site-1", cohort=(), state=state)
    monkeypatch.setattr(worker_config, "load_site_settings", lambda config: settings)
    assert not server.prepare()["site-1"].refused
    return server, state


def test_without_space_for_its_state_a_site_does_not_train(
    with_state_folder: tuple[LyingServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, state = with_state_folder
    first = server.initial_state()
    DiskReserve(state / "run-1").release()

    def refuse(descriptor: int, size: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(state)):
            raise FULL

    monkeypatch.setattr(disk_space, "_allocate", refuse)
    monkeypatch.setattr(ToyLearner, "fit", lambda *args: pytest.fail("it trained"))
    answer = server.send("site-1", "fit", first)
    assert (answer.failure["code"], answer.text) == (33, DISK_FULL)


def test_no_run_but_the_jobs_own_gets_a_folder_there(with_state_folder: tuple[LyingServer, Path]) -> None:
    server, state = with_state_folder
    for number in range(3):
        assert server.send("site-1", "prepare", run_id=f"made-up-{number}").refused
    assert [folder.name for folder in state.iterdir()] == ["run-1"]
    assert (state / "run-1" / disk_space.FILE).stat().st_size == disk_space.RESERVE_BYTES


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, reserve: Path) -> None:
    """Let nothing be written beside a reserve until it is given back."""

    def refusing(write: Callable[..., None]) -> Callable[..., None]:
        def refuse(*args: Any, **kwargs: Any) -> None:
            there = any(isinstance(arg, Path) and arg.is_relative_to(reserve.parent) for arg in args)
            if there and reserve.exists():
                raise SafetensorError(f"Error while serializing: I/O error: {FULL.strerror} (os error 28)")
            write(*args, **kwargs)

        return refuse

    for module, name in ((files, "save_file"), (files, "sync"), (durable, "sync")):
        monkeypatch.setattr(module, name, refusing(getattr(module, name)))


def test_the_reserve_is_what_the_reason_is_written_with(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federation()
    fill_the_disk(monkeypatch, run.folder / disk_space.FILE)
    record = run.run()
    assert record.status == "failed"
    assert "the disk of the server is full" in record.reason
    assert (run.folder / "result" / "adapter" / "adapter_model.safetensors").is_file()
    assert record.artefacts["final"] == "result/adapter"
    assert not list(run.folder.rglob("*.tmp"))


def test_a_reason_is_written_even_if_the_adapter_cannot_be(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise FULL

    run = federation()
    monkeypatch.setattr(run.engine.components["persistor"].writer, "write", refuse)
    record = run.run()
    assert record.status == "failed"
    assert "the disk of the server is full" in record.reason
    assert run.fatal == [record.reason]


def test_no_reserve_stays_behind(federation: Callable[..., Federation]) -> None:
    run = federation()
    assert run.run().status == "completed"
    assert not (run.folder / disk_space.FILE).exists()


@pytest.mark.parametrize(
    "error", [FULL, OSError(errno.EDQUOT, "Disk quota exceeded"), SafetensorError(f"I/O: {FULL.strerror}")]
)
def test_what_a_full_disk_says_and_what_leaves_the_site(error: Exception) -> None:
    assert is_disk_full(error)
    failure = failure_of(error)
    assert (failure.code, failure.text) == (FailureCode.DISK_FULL, DISK_FULL)


def test_other_errors_are_no_full_disk() -> None:
    assert not any(map(is_disk_full, [OSError(errno.EACCES, "denied"), ValueError("28"), KeyError("x")]))


@pytest.mark.parametrize("keep_previous", [False, True])
def test_the_file_that_stood_there_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_previous: bool
) -> None:
    file = tmp_path / "x.safetensors"
    save_tensors(file, {"w": torch.ones(3)})

    def refuse(path: Path) -> None:
        raise FULL

    for module in (files, durable):
        monkeypatch.setattr(module, "sync", refuse)
    with pytest.raises(DiskFullError, match=r"the disk is full: \d+ MB free in "):
        save_tensors(file, {"w": torch.zeros(3)}, keep_previous=keep_previous)
    with pytest.raises(DiskFullError):
        write_json(tmp_path / "x.json", {})
    assert torch.equal(load_tensors(file)[0]["w"], torch.ones(3))
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_reserve_takes_space_grows_and_is_given_back(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "run")
    reserve.hold(1000)
    reserve.hold(100_000)
    reserve.hold(10)
    assert reserve.file.stat().st_size == 100_000
    assert reserve.file.stat().st_blocks * 512 >= 100_000
    reserve.release()
    reserve.release()
    assert not reserve.file.exists()


def test_without_space_for_the_reserve_nothing_starts(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, size: int) -> None:
        raise FULL

    monkeypatch.setattr(disk_space, "_allocate", refuse)
    run = federation()
    record = run.run()
    assert record.status == "failed"
    assert "the disk of the server is full" in record.reason
    assert not record.rounds
    assert read_json(run.folder / "run.json")["status"] == "failed"
