# SPDX-License-Identifier: Apache-2.0
"""Files of tensors, of which a crash leaves the old or the new one, and in which damage is noticed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from medflare.core.errors import DataError
from medflare.core.tensors import State
from medflare.wire.digest import state_digest
from medflare.wire.durable import replace_durably, scratch_file
from medflare.wire.folders import sync

PREVIOUS = ".previous"
"""Ending of the generation before: what is read where the newest file is damaged."""


class DamagedFileError(DataError):
    """A file is not what was written: a disk lost part of it, or changed a bit."""


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any] | None = None,
    *,
    durable: bool = True,
    forced: bool = True,
    keep_previous: bool = False,
) -> None:
    """Write a safetensors file atomically.

    Args:
        values: JSON that goes into its header under 'values'.
        durable: whether the file outlives this process: it gets a digest and is forced to the disk.
        forced: False leaves a durable file to the system's own time; after a power cut it may be damaged.
        keep_previous: whether the file that stood there stays beside it, for `load_newest`.

    Raises:
        DiskFullError: there is no space; the file that stood there still stands.
    """
    plain = _apart(tensors)
    text = json.dumps(dict(values or {}))
    metadata = {"values": text} | ({"sha256": _digest(plain, text)} if durable else {})
    with scratch_file(path) as scratch:
        save_file(plain, scratch, metadata=metadata)
        if durable and forced:
            sync(scratch)  # before anything is moved: some file systems notice only here that they are full
        if keep_previous and path.exists():
            os.replace(path, path.with_name(path.name + PREVIOUS))
        if durable and forced:
            replace_durably(scratch, path)
        else:
            os.replace(scratch, path)


def _apart(tensors: Mapping[str, Tensor]) -> State:
    """Return contiguous tensors on the CPU, no two of which share memory; copied only where they would."""
    plain, storages = State(), set[int]()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        storage = value.untyped_storage()
        if storage.nbytes() != value.nbytes or storage.data_ptr() in storages:
            value = value.clone()
        storages.add(storage.data_ptr())
        plain[name] = value
    return plain


def load_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the tensors and the values that `save_tensors` wrote.

    Raises:
        DamagedFileError: the file is cut off, or holds something else than was written.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        values: dict[str, Any] = json.loads(metadata.get("values", "{}"))
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path}: is damaged ({error}). Restore it from a copy.") from None
    digest = metadata.get("sha256")
    if digest is not None and digest != _digest(tensors, metadata.get("values", "")):
        raise DamagedFileError(
            f"{path}: is damaged: its content is not what was written. Check the disk, and restore the file "
            "from a copy."
        )
    return tensors, values


def load_values(path: Path) -> dict[str, Any]:
    """Return the values of a file of `save_tensors` without reading its tensors; {} if it has none."""
    try:
        with safe_open(path, framework="pt") as file:
            values: dict[str, Any] = json.loads((file.metadata() or {}).get("values", "{}"))
        return values
    except (SafetensorError, OSError, ValueError, RecursionError):
        return {}


def load_before(path: Path, key: str, limit: int) -> tuple[State, dict[str, Any]] | None:
    """Return the newest whole generation of a file whose value `key` is below a limit.

    Returns:
        None where there is no such generation.
    """
    for candidate in (path, path.with_name(path.name + PREVIOUS)):
        if candidate.exists():
            with suppress(DamagedFileError):
                tensors, values = load_tensors(candidate)
                if values.get(key, -1) < limit:
                    return tensors, values
    return None


def load_newest(path: Path) -> tuple[State, dict[str, Any]] | None:
    """Return what `load_tensors` finds in a file, or in the generation before where that one is damaged.

    Returns:
        None where neither exists.

    Raises:
        DamagedFileError: both are damaged, or one is and there is no other.
    """
    damage: DamagedFileError | None = None
    for candidate in (path, path.with_name(path.name + PREVIOUS)):
        if candidate.exists():
            try:
                return load_tensors(candidate)
            except DamagedFileError as error:
                damage = damage or error
    if damage is not None:
        raise damage
    return None


def _digest(tensors: State, text: str) -> str:
    """Return the sha256 of tensors and of the JSON beside them."""
    return hashlib.sha256(f"{state_digest(tensors)}|{text}".encode()).hexdigest()
