# SPDX-License-Identifier: Apache-2.0
"""Shared set-up of the in-process federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fed_clock import ExchangeClock
from fed_graphs import Hospitals, exact_runs, need_psi
from fed_harness import Federation, Make, use_toy_sites
from fed_quadratic import QuadraticLearner
from fed_visits import COUNTS, VisitLearner

from medflare.federation.server.controller import TemporalRoundsController
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes federations of toy sites below the test's own folder."""
    use_toy_sites(monkeypatch)
    made = 0

    def make(**options: Any) -> Federation:
        nonlocal made
        made += 1
        run = Federation(root=tmp_path / f"run{made}", **options)
        if run.flow.args.protection == "he":
            make_contexts(run.root / "startup", ContextParameters())
        return run

    return make


@pytest.fixture
def quadratics(federation: Make) -> Make:
    """Makes federations over sites with quadratic losses, with a rule and a number of rounds."""

    def make(name: str, rounds: int = 2, rule: dict[str, Any] | None = None, **controller: Any) -> Federation:
        return federation(
            learner=controller.pop("learner", QuadraticLearner),
            controller={"num_rounds": rounds, "seed": 7, **controller},
            rule={"rule": name, "rule_settings": rule or {}},
        )

    return make


@pytest.fixture
def visits(federation: Make) -> Make:
    """Makes federations of temporal rounds over sites with these numbers of examples of each visit.

    Settings are of the rule; for rule `temporal` without its number of visits.
    """

    def make(
        rounds: int = 3,
        counts: dict[str, list[int]] = COUNTS,
        rule: str = "temporal",
        learner: type[VisitLearner] = VisitLearner,
        site_settings: dict[str, Any] | None = None,
        controller: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Federation:
        count = len(counts["site-1"])
        if rule == "temporal":
            settings = {"visits": count, **settings}
        return federation(
            learner=learner,
            controller={"num_rounds": rounds, "seed": 7, "visits": count, **(controller or {})},
            rule={"rule": rule, "rule_settings": settings},
            settings={"counts": counts, **(site_settings or {})},
            flow_class=TemporalRoundsController,
        )

    return make


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ExchangeClock:
    """What the server's exchanges measure seconds by; a site can miss a deadline in no time."""
    return ExchangeClock(monkeypatch)


@pytest.fixture
def graph_hospitals(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Hospitals, Make]:
    """Hospitals whose graphs are files, and runs that compare them exactly."""
    need_psi()
    return exact_runs(federation, tmp_path, monkeypatch)
