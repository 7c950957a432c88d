# SPDX-License-Identifier: Apache-2.0
"""Federations of real methods: every site has a site.yaml, is a thread, and trains in its turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fed_harness import Federation


def real_federation(folder: Path, site_files: Mapping[str, dict[str, Any]], **options: Any) -> Federation:
    """A run below `folder`, one of several; site -> content of its site.yaml, also of who only watches."""
    root = folder / f"run{len(list(folder.iterdir()))}"
    for name, content in site_files.items():
        local = root / name / "local"
        local.mkdir(parents=True)
        (local / "site.yaml").write_text(json.dumps(content), encoding="utf-8")
    return Federation(root=root, **options)


def take_turns(monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]) -> None:
    """Functions, as (owner, name), of which one runs at a time: randomness is the process's."""
    turn = threading.Lock()
    for owner, name in functions:
        monkeypatch.setattr(owner, name, _guarded(turn, getattr(owner, name)))


def _guarded(turn: threading.Lock, function: Any) -> Any:
    def guarded(*args: Any) -> Any:
        with turn:
            return function(*args)

    return guarded
