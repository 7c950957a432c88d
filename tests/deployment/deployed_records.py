# SPDX-License-Identifier: Apache-2.0
"""What a deployed run left behind, compared with another run of the same job, and searched for secrets."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.core.run_record import RunRecord
from medflare.wire.files import load_tensors

OWN_TO_A_RUN = {"timings", "run_id", "started", "seconds", "versions", "predictions"}
"""`predictions` is the path of a file at a site, with the run's folder in it."""


def facts(record: RunRecord) -> dict[str, Any]:
    """Everything a record says that the clock, the run's name and its folder have no part in."""

    def timeless(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: timeless(v) for k, v in node.items() if k not in OWN_TO_A_RUN and "seconds" not in k}
        return [timeless(item) for item in node] if isinstance(node, list) else node

    found: dict[str, Any] = timeless(record.model_dump(mode="json"))
    return found


def differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two records differ by more than the order of a sum can make them."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        out = [f"{place}/{key}: only one has it" for key in sorted(ours.keys() ^ theirs.keys())]
        common = sorted(ours.keys() & theirs.keys())
        return out + [d for key in common for d in differences(ours[key], theirs[key], f"{place}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for number, (a, b) in pairs for d in differences(a, b, f"{place}/{number}")]
    if isinstance(ours, float) and isinstance(theirs, float):
        return [] if ours == pytest.approx(theirs, rel=1e-4, abs=1e-6) else [f"{place}: {ours}, {theirs}"]
    return [] if ours == theirs else [f"{place}: {ours}, {theirs}"]


def assert_same_adapter(ours: Path, theirs: Path) -> None:
    """Two adapters hold the same tensors, but for the order of a sum, and not only zeros."""
    found, expected = (load_tensors(path / "adapter_model.safetensors")[0] for path in (ours, theirs))
    assert found.keys() == expected.keys()
    assert any(value.any() for value in found.values())
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-6, rtol=1e-5)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every file below a folder, the members of archives too.

    An archive is what begins as one. `zipfile.is_zipfile` looks for four bytes near the end, which random
    bytes (keys, masks, weights) hold by chance: one such file made a search end with BadZipFile.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield path.name, data
            if data.startswith(b"PK\x03\x04"):
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    yield from ((name, archive.read(name)) for name in archive.namelist())


def found_in(folder: Path, private: Collection[bytes]) -> list[str]:
    """Where below a folder any of these words stands, in contents or names of files."""
    found = []
    for name, text in contents(folder):
        places = (text, text.lower(), name.encode())
        found += [f"{name}: {word!r}" for word in private if any(word in place for place in places)]
    return found
