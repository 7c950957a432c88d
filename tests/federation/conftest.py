# SPDX-License-Identifier: Apache-2.0
"""Shared set-up of the in-process federations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fed_harness
import pytest
from fed_clock import ExchangeClock
from fed_graphs import Hospitals, exact_runs, need_psi
from fed_harness import Federation, use_site_names
from fed_quadratic import build_quadratic


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


@pytest.fixture
def quadratics(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Federation]:
    """Makes federations over sites with quadratic losses, with a rule and a number of rounds."""
    monkeypatch.setattr(fed_harness, "build_toy", build_quadratic)

    def make(name: str, rounds: int = 2, rule: dict[str, Any] | None = None, **controller: Any) -> Federation:
        given = {"rule": name, "rule_settings": rule or {}}
        return federation(controller={"num_rounds": rounds, "seed": 7, **controller}, rule=given)

    return make


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ExchangeClock:
    """What the server's exchanges measure seconds by; a site can miss a deadline in no time."""
    return ExchangeClock(monkeypatch)


@pytest.fixture
def graph_hospitals(
    federation: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Hospitals, Callable[..., Federation]]:
    """Hospitals whose graphs are files, and runs that compare them exactly."""
    need_psi()
    return exact_runs(federation, tmp_path, monkeypatch)
