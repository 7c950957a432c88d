# SPDX-License-Identifier: Apache-2.0
"""Moments between two writes in which a crash must not leave files that contradict each other."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import Federation, Make, completed, final
from fed_plug import interrupted_in, plug, resumed
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from safetensors.torch import load_file

from medflare.core.patient_privacy import Mechanism
from medflare.core.tensors import State
from medflare.differential_privacy.spending import SpendingBook
from medflare.egress.ledger import Ledger
from medflare.federation.server import checkpoint_manager
from medflare.federation.server.run_folder import RunFolder
from medflare.federation.server.run_state import RunState, load_state, load_state_to_go_on, save_state
from medflare.protections.opened_sums import OpenedSums, SumOrigin
from medflare.wire.disk_space import DiskReserve

BEST = {"num_rounds": 3, "best_metric": "val_loss", "best_mode": "min"}


def best_adapter(run: Federation) -> State:
    return load_file(run.folder / "result/best/adapter_model.safetensors")


@pytest.mark.fault(
    "power cut at the server, and the round goes otherwise when it is repeated",
    phase="after the best adapter, before the state",
    result="the best adapter is that of the round which the record names",
)
def test_the_best_adapter_is_that_of_the_round_that_the_record_names(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = federation(controller={**BEST, "num_rounds": 1})
    completed(first)
    run = federation(controller=BEST)
    assert interrupted_in(run, monkeypatch, checkpoint_manager, "save_state", call=3)

    def measures_nothing(site: str, task: str, reply: Shareable) -> Any:
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if task == "evaluate" else None

    again = resumed(run)
    again.tamper = measures_nothing
    assert completed(again).best_round == 0
    assert all(torch.equal(value, best_adapter(first)[name]) for name, value in best_adapter(again).items())


@pytest.mark.fault(
    "power cut after the last write", phase="end", result="a completed run has its adapter on the disk"
)
def test_an_adapter_is_on_the_disk_before_the_record_says_completed(federation: Make) -> None:
    run = federation(controller=BEST)
    with plug(run, 0) as pulled:
        completed(run)
    files = [file for file in run.folder.glob("result/*/*") if file.is_file()]
    assert len(files) > 3
    assert {
        file.name for file in files if pulled.forced.get(file.stat().st_ino) != file.stat().st_size
    } == set()


@pytest.mark.fault(
    "a site is left out because it could not prepare, and is mended",
    phase="resuming",
    result="takes part from there on",
)
def test_a_site_that_was_mended_is_not_left_out_of_a_run_that_goes_on(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_prepare(site: str, task: str, reply: Shareable) -> Any:
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if (site, task) == ("site-3", "prepare") else None

    run = federation(controller={**BEST, "min_responses": 2}, tamper=cannot_prepare)
    assert interrupted_in(run, monkeypatch, checkpoint_manager, "save_state", call=3)
    assert "prepare failed" in run.record().rounds[0].absent["site-3"]
    again = resumed(run)
    again.tamper = None
    record = completed(again)
    assert [sorted(entry.accepted) for entry in record.rounds] == [
        ["site-1", "site-2"],
        *[["site-1", "site-2", "site-3"]] * 2,
    ]


@pytest.mark.fault(
    "two states are damaged, one after the other", phase="resuming", result="goes on from the last whole one"
)
def test_a_damaged_state_is_not_the_one_that_is_kept_for_the_next_damage(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save_state(tmp_path, RunState(exchanges_done=number, shared={}))
    (tmp_path / "0003/shared.safetensors").write_bytes(b"")
    assert load_state_to_go_on(tmp_path).exchanges_done == 2
    save_state(tmp_path, RunState(exchanges_done=3, shared={}))
    (tmp_path / "0004/shared.safetensors").write_bytes(b"")
    assert load_state(tmp_path).exchanges_done == 2


def test_a_long_record_is_in_no_header_of_a_file_which_holds_100_mb_at_most(tmp_path: Path) -> None:
    record = '{"site": "Zürich"}' * 50_000
    save_state(tmp_path, RunState(exchanges_done=1, shared={}, record=record))
    headers = {
        file.name: int.from_bytes(file.read_bytes()[:8], "little") for file in tmp_path.glob("*/*.safe*")
    }
    assert max(headers.values()) < 1000, headers
    assert load_state(tmp_path).record == record


@pytest.mark.fault("a run is paused", phase="training", result="equal after `resume`, no round twice")
def test_a_pause_ends_the_run_after_its_round_and_costs_nothing(federation: Make) -> None:
    undisturbed = federation(controller=BEST)
    completed(undisturbed)

    def asks(site: str, task: str, reply: Shareable) -> None:
        if (site, task) == ("site-1", "fit"):
            run.flow.store.ask_for_pause()

    run = federation(controller=BEST, tamper=asks)
    record = run.run()
    assert (record.status, len(record.rounds)) == ("paused", 1)
    again = resumed(run)
    again.tamper = None
    assert [entry.round for entry in completed(again).rounds] == [0, 1, 2]
    assert all(torch.equal(value, final(undisturbed)[name]) for name, value in final(again).items())


@pytest.mark.fault(
    "the server dies before the pause that was asked for", phase="training", result="`resume` goes on"
)
def test_a_pause_that_was_asked_of_a_dead_process_stops_no_other(tmp_path: Path) -> None:
    dead = RunFolder(tmp_path)
    dead.open("job", resuming=False)
    dead.record.write_text("{}")
    dead.ask_for_pause()
    dead.close()
    again = RunFolder(tmp_path)
    again.open("job2", resuming=True)
    assert not again.take_pause()
    again.close()


def test_somebody_who_lists_the_runs_keeps_no_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    reader = (tmp_path / "lock").open()
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.1, reader.close).start()
    run = RunFolder(tmp_path)
    run.open("job", resuming=False)
    run.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: RunFolder(folder).open("job", resuming=False),
        lambda folder: OpenedSums(folder).remember(SumOrigin(state="s", weights="w"), ["a", "b"]),
        lambda folder: SpendingBook(folder).charge(["p"], Mechanism(noise=1.0, rate=0.1, steps=1), "run"),
        lambda folder: save_state(folder, RunState(exchanges_done=0, shared={})),
        lambda folder: DiskReserve(folder).hold(),
        lambda folder: Ledger(folder / "egress.jsonl", "site-1", "job").resent("fit", 0, {}),
    ],
    ids=["run", "opened sums", "privacy", "state", "reserve", "ledger"],
)
def test_a_new_folder_is_on_the_disk_before_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Any]
) -> None:
    forced, real = set[str](), os.fsync

    def fsync(descriptor: int) -> None:
        forced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "kit/kept/one")
    made = [folder for folder in tmp_path.rglob("*") if folder.is_dir()]
    assert len(made) >= 3
    assert {str(folder.parent) for folder in made} <= forced
