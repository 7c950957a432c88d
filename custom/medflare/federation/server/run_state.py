# SPDX-License-Identifier: Apache-2.0
"""The server's state from which a run goes on; written after every exchange, all of it or nothing.

Layout: `state/0003/{shared,totals,rule,record}.safetensors, state.json}` and `state/latest.json`, which names
the folder that is complete. Folders are numbered as they are written, so that none is ever written over; the
one before stays, for the day a disk damages the newest. Each tensor file holds a digest of its content.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from medflare.core.errors import DataError
from medflare.core.tensors import State, flatten, unflatten
from medflare.wire.durable import read_json, replace_durably, write_json
from medflare.wire.files import DamagedFileError, load_tensors, save_tensors

LATEST = "latest.json"
RECORD = "record"


@dataclass(slots=True, kw_only=True)
class RunState:
    """The server after `exchanges_done` exchanges of updates.

    Attributes:
        shared: the shared tensors, and what a protection adds to them for the sites.
        totals: sums over the last exchange's updates.
        rule: `AggregationRule.state_dict()`: tensors, mappings of tensors, or JSON values.
        values: everything else that the run knows (`resume.captured`); JSON types.
        record: the run's record at that moment, as its JSON text.
    """

    exchanges_done: int
    shared: State
    totals: State = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    record: str = "{}"


def save_state(folder: Path, state: RunState) -> None:
    """Write the state and then point `latest.json` to it; of older ones the last stays."""
    written = _folders(folder)
    name = f"{1 + max((int(path.name) for path in written), default=0):04d}"
    scratch, final = folder / f"{name}.tmp", folder / name
    shutil.rmtree(scratch, ignore_errors=True)
    facts = {"exchanges_done": state.exchanges_done, **state.values}
    save_tensors(scratch / "shared.safetensors", state.shared, {"facts": facts})
    # Not in a header, which holds 100 MB at most: the record of a long run of many sites has more.
    save_tensors(scratch / "record.safetensors", {RECORD: _as_bytes(state.record)})
    save_tensors(scratch / "totals.safetensors", state.totals)
    tensors, values = flatten(state.rule)
    save_tensors(scratch / "rule.safetensors", tensors, values)
    write_json(scratch / "state.json", facts)  # for people; what is read again has a digest
    before = _generations(folder)[:1]
    replace_durably(scratch, final)
    write_json(folder / LATEST, {"folder": name})
    for old in written:
        if old not in before:
            shutil.rmtree(old, ignore_errors=True)


def has_state(folder: Path) -> bool:
    """Return whether a run has come so far as to write a state."""
    return (folder / LATEST).exists()


def load_state(folder: Path) -> RunState:
    """Return the last complete state in `folder`; where that one is damaged, the one before.

    Raises:
        DataError: there is no state, or none that is whole.
    """
    return _newest_whole(folder)[1]


def load_state_to_go_on(folder: Path) -> RunState:
    """Return what `load_state` does, and let `latest.json` name it.

    `save_state` keeps the state that is named there beside the new one: the one that the run went on from,
    and never one that is damaged.
    """
    inner, state = _newest_whole(folder)
    write_json(folder / LATEST, {"folder": inner.name})
    return state


def _newest_whole(folder: Path) -> tuple[Path, RunState]:
    """Return the state that `load_state` returns, with its folder."""
    if not has_state(folder):
        raise DataError(f"{folder}: holds no run state. Name the `state` folder of a server's run.")
    damage: list[str] = []
    for inner in _generations(folder):
        try:
            return inner, _load(inner)
        except (DamagedFileError, OSError, ValueError, KeyError) as error:
            damage.append(f"{inner.name}: {error}")
    raise DataError(f"{folder}: holds no state that is whole. {'; '.join(damage)}")


def _folders(folder: Path) -> list[Path]:
    """Return the states that were written as a whole, the newest first."""
    states = (path for path in folder.glob("*") if path.is_dir() and path.name.isdecimal())
    return sorted(states, key=lambda path: int(path.name), reverse=True)


def _generations(folder: Path) -> list[Path]:
    """Return the complete states, the one that `latest.json` names first."""
    states = _folders(folder)
    try:
        latest = str(read_json(folder / LATEST)["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return states
    return sorted(states, key=lambda path: path.name != latest)


def _load(inner: Path) -> RunState:
    shared, written = load_tensors(inner / "shared.safetensors")
    values = written["facts"]
    rule_tensors, rule_values = load_tensors(inner / "rule.safetensors")
    return RunState(
        exchanges_done=values.pop("exchanges_done"),
        shared=shared,
        totals=load_tensors(inner / "totals.safetensors")[0],
        rule=unflatten(rule_tensors, rule_values),
        values=values,
        record=load_tensors(inner / "record.safetensors")[0][RECORD].numpy().tobytes().decode(),
    )


def _as_bytes(text: str) -> torch.Tensor:
    """Return a text in UTF-8 as uint8 (bytes,)."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
