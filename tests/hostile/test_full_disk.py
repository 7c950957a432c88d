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
from safetensors import SafetensorError

from medflare.egress.failures import DISK_FULL, FailureCode, failure_of
from medflare.wire import disk_space, files
from medflare.wire.disk_space import DiskFullError, DiskReserve, is_disk_full
from medflare.wire.files import load_tensors, read_json, save_tensors, write_json

HERE = Path(__file__).parent
PROGRAM = HERE / "full_disk_program.py"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/patients/p1.safetensors")


def run_on_a_small_disk(root: Path, party: str, worker: str) -> dict[str, Any]:
    """Run the program with a real disk of some MB for one party; skip where none can be mounted."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    probe = "mount -t tmpfs -o size=1m none " + str(root)
    if shutil.which("unshare") is None or subprocess.run([*unshare, "sh", "-c", probe]).returncode:
        pytest.skip("this machine lets nobody mount a small disk in a namespace of its own")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "federation"), *filter(None, sys.path)])
    done = subprocess.run(
        [*unshare, sys.executable, str(PROGRAM), str(root), party, worker],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_server_with_a_full_disk_ends_by_name_and_keeps_the_adapter(tmp_path: Path) -> None:
    result = run_on_a_small_disk(tmp_path, "server", "thread")
    assert result["status"] == "failed"
    assert result["reason"].startswith("the disk of the server is full: 0 MB free in ")
    assert result["fatal"] == [result["reason"]]
    assert result["adapter"]
    assert not result["reserve"]


@pytest.mark.parametrize("worker", ["thread", "process"])
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


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, reserve: Path) -> None:
    """Let nothing be written beside a reserve until it is given back."""

    def refusing(write: Callable[..., None]) -> Callable[..., None]:
        def refuse(*args: Any, **kwargs: Any) -> None:
            there = any(isinstance(arg, Path) and arg.is_relative_to(reserve.parent) for arg in args)
            if there and reserve.exists():
                raise SafetensorError(f"Error while serializing: I/O error: {FULL.strerror} (os error 28)")
            write(*args, **kwargs)

        return refuse

    for name in ("save_file", "sync"):
        monkeypatch.setattr(files, name, refusing(getattr(files, name)))


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

    monkeypatch.setattr(files, "sync", refuse)
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
