# SPDX-License-Identifier: Apache-2.0
"""Shared set-up of the in-process federations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fed_harness import Federation, use_site_names


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Federation]:
    """Makes federations of toy sites below the test's own folder."""
    use_site_names(monkeypatch)
    made = 0

    def make(**options: Any) -> Federation:
        nonlocal made
        made += 1
        return Federation(root=tmp_path / f"run{made}", **options)

    return make
