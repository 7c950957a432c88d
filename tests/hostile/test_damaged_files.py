# SPDX-License-Identifier: Apache-2.0
"""A disk that changes a bit or loses the end of a file: it is noticed, and the generation before serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fed_harness import Federation, completed
from lying_server import LyingServer

from medflare.core.errors import DataError
from medflare.federation.server.run_state import RunState, load_state, save_state
from medflare.federation.server.run_values import load_run
from medflare.wire import files
from medflare.wire.files import DamagedFileError, load_newest, load_tensors, save_tensors

Damage = Callable[[Path], None]


def flip_a_bit(path: Path) -> None:
    """Change one bit of the last value, as a failing disk does."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(bytes(content))


def cut_off(path: Path) -> None:
    """Lose the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Lose all of a file's content, as after a power cut without fsync."""
    os.truncate(path, 0)


DAMAGES = pytest.mark.parametrize("damage", [flip_a_bit, cut_off, empty])


@DAMAGES
def test_a_damaged_file_is_noticed(tmp_path: Path, damage: Damage) -> None:
    file = tmp_path / "x.safetensors"
    save_tensors(file, {"w": torch.arange(6.0)}, {"a": 1})
    damage(file)
    with pytest.raises(DamagedFileError, match="is damaged"):
        load_tensors(file)


@DAMAGES
def test_the_generation_before_serves(tmp_path: Path, damage: Damage) -> None:
    file = tmp_path / "x.safetensors"
    assert load_newest(file) is None
    for number in range(3):
        save_tensors(file, {"w": torch.full((4,), float(number))}, {"n": number}, keep_previous=True)
    damage(file)
    tensors, values = load_newest(file) or ({}, {})
    assert values == {"n": 1}
    assert torch.equal(tensors["w"], torch.ones(4))
    damage(file.with_name(file.name + files.PREVIOUS))
    with pytest.raises(DamagedFileError):
        load_newest(file)


@pytest.mark.fault(
    "a damaged file of the server's state: {name}", phase="resuming", result="goes on from the state before"
)
@DAMAGES
@pytest.mark.parametrize("name", ["shared.safetensors", "rule.safetensors", "totals.safetensors"])
def test_a_server_goes_on_from_the_round_before(tmp_path: Path, damage: Damage, name: str) -> None:
    for number in (1, 2, 3):
        save_state(
            tmp_path,
            RunState(
                exchanges_done=number,
                shared={"w": torch.ones(3)},
                totals={"t": torch.ones(2)},
                rule={"m": torch.ones(2)},
            ),
        )
    assert sorted(p.name for p in tmp_path.glob("[0-9]*")) == ["0002", "0003"]
    damage(tmp_path / "0003" / name)
    assert load_state(tmp_path).exchanges_done == 2
    damage(tmp_path / "0002" / name)
    with pytest.raises(DataError, match="no state that is whole"):
        load_state(tmp_path)


def test_a_state_of_another_version_is_named_and_not_half_read(federation: Callable[..., Federation]) -> None:
    run = federation()
    assert run.run().status == "completed"
    state = load_run(run.state).state
    state.values["horizon"] = state.values.pop("begun")
    save_state(run.state, state)
    with pytest.raises(DataError, match=r"(?s)begun.*horizon.*with the version that began it"):
        load_run(run.state)


@pytest.mark.fault(
    "a damaged pointer to the newest state", phase="resuming", result="the newest whole state is found"
)
@DAMAGES
def test_a_damaged_pointer_is_no_loss(tmp_path: Path, damage: Damage) -> None:
    save_state(tmp_path, RunState(exchanges_done=1, shared={}))
    damage(tmp_path / "latest.json")
    assert load_state(tmp_path).exchanges_done == 1


@pytest.mark.fault(
    "a damaged local state at a site", phase="training", result="takes part from the state before"
)
@DAMAGES
def test_a_site_whose_local_state_is_damaged_takes_part_in_the_next_round(
    lying_server: Callable[..., LyingServer], damage: Damage
) -> None:
    server = lying_server()
    server.prepare()
    state = server.initial_state()
    for number in range(2):
        assert not server.send("site-1", "fit", state, round=number).refused
    (file,) = server.root.glob("site-1/local_state/job/local_state.safetensors")
    damage(file)
    server.restart("site-1")
    server.prepare()
    answer = server.send("site-1", "fit", state, round=2)
    assert answer.failure == {}


def test_a_run_leaves_two_rounds(federation: Callable[..., Federation]) -> None:
    run = federation(controller={"num_rounds": 3})
    completed(run)
    assert len(list(run.state.glob("[0-9]*"))) == 2


@pytest.mark.fault(
    "a state that is written and not pointed to", phase="saving", result="the one before counts"
)
def test_a_state_that_was_written_and_not_pointed_to_is_not_gone_on_from(tmp_path: Path) -> None:
    save_state(tmp_path, RunState(exchanges_done=0, shared={}))
    pointer = (tmp_path / "latest.json").read_text()
    save_state(tmp_path, RunState(exchanges_done=0, shared={"w": torch.ones(1)}))
    (tmp_path / "latest.json").write_text(pointer)  # as if the plug had been pulled before it moved
    assert load_state(tmp_path).shared == {}
    save_state(tmp_path, RunState(exchanges_done=1, shared={}))
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == ["0001", "0003"]
    assert load_state(tmp_path).exchanges_done == 1
