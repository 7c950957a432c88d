# SPDX-License-Identifier: Apache-2.0
"""Runs that cannot be: they end as failed, most of them before round one, and the record says why."""

from __future__ import annotations

from typing import Any

import pytest
from fed_harness import SITES, failed
from fed_quadratic import QuadraticLearner
from fed_visits import VisitLearner

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.federation.server.controller import RoundsController, TemporalRoundsController
from medflare.federation.server.scorer import SERVER
from medflare.learners.fedtar.mixture import MixtureSettings

MASKED, FIVE = {"protection": "masking"}, tuple(f"site-{k}" for k in range(1, 6))
COUNTS = {"counts": {"site-1": [9, 7, 5], "site-2": [6, 0, 8], "site-3": [4, 8, 3]}}
MIXTURE = {"components": 4, "iterations": 6, "least_patients": 2, "tolerance": 1e-9}


def only(site: str, **settings: Any) -> dict[str, Any]:
    return {"sites": {site: settings}}


def scored(**server: Any) -> dict[str, Any]:
    """Server-scored runs whose server has these settings."""
    return {"rule": {"rule": "influence"}, "settings": only(SERVER, **server)}


def temporal(controller: dict[str, Any], **more: Any) -> dict[str, Any]:
    rule = {"rule": "temporal", "rule_settings": {"visits": 3}}
    return {
        "learner": VisitLearner,
        "settings": COUNTS,
        "rule": rule,
        "flow_class": TemporalRoundsController,
        "controller": {"num_rounds": 3, "visits": 3, **controller},
        **more,
    }


class MixedUp(VisitLearner):
    """Trains on visit 2 whatever the plan says, also where a round is one exchange."""

    def rows(self, plan: RoundPlan) -> Any:
        return self.data[1]


class Moving(VisitLearner):
    """Sends a change by an update of no examples."""

    def fit(self, plan: RoundPlan) -> Update:
        update = super().fit(plan)
        delta = {name: value + 1 for name, value in update.delta.items()}
        return Update(delta=delta, examples=0, sums=update.sums)


class Telling(VisitLearner):
    """Sends the sums of its profiles beside an update."""

    def fit(self, plan: RoundPlan) -> Update:
        update = super().fit(plan)
        update.sums |= self.profile_sums()
        return update


BEFORE_ROUND_ONE: dict[str, tuple[dict[str, Any], str]] = {
    "fingerprint": (
        {"settings": only("site-2", fingerprint="f1")},
        "fingerprint of site-2 is f1, of site-1 it is f0",
    ),
    "tensors": (
        {"settings": only("site-3", width=5)},
        "of site-3 is [[1, 5], 'float32'], of site-1 it is [[1, 4], 'float32']",
    ),
    "no notes at the server": (scored(val=0), "names no record of the split 'val'"),
    "fingerprint of the server": (
        scored(fingerprint="f9"),
        "backbone fingerprint of server is f9, of site-1 it is f0",
    ),
    "tensors of the server": (
        scored(width=5),
        "of server is [[1, 5], 'float32'], of site-1 it is [[1, 4], 'float32']",
    ),
    "no shared notes": (
        {"rule": {"rule": "influence", "rule_settings": {"mode": "client", "clip": 0.5}}},
        "site-1, site-2, site-3 named none",
    ),
    **{
        f"{rule} without steps": (
            {"rule": {"rule": rule}},
            f"rule '{rule}' asks something of every optimiser step",
        )
        for rule in ("fedprox", "scaffold", "drfa")
    },
    "two numbers of visits": (
        temporal({"visits": 2}),
        "rule_settings.visits is 3, and the controller's `visits` is 2",
    ),
    "few patients": (
        temporal({"mixture": MixtureSettings(components=4, least_patients=1000).model_dump()}),
        "a component of the mixture needs 1000",
    ),
    "no profiles": (
        {"controller": {"mixture": MIXTURE}, "flow_class": TemporalRoundsController},
        "makes no profiles",
    ),
}
IN_A_ROUND: dict[str, tuple[dict[str, Any], str]] = {
    "masks of two": (
        {"sites": SITES[:2], "controller": MASKED},
        "policy asks for 3 or more",
    ),
    "threshold": (
        {"sites": FIVE, "controller": {**MASKED, "protection_settings": {"threshold": 2}}},
        "threshold is 2 of 5 sites; expected 3 to 5",
    ),
    "two draws under masks": (
        {
            "learner": QuadraticLearner,
            "rule": {"rule": "ddcs", "rule_settings": {"draws": 2}},
            "controller": MASKED,
        },
        "2 draws from 3 sites give 3 different ones never",
    ),
    "all sites are required": (
        {"settings": only("site-3", raises={"0": "boom"})},
        " accepted, 3 needed",
    ),
    "beyond the bound of masks": (
        {"controller": {**MASKED, "protection_settings": {"bound": 1e-3}, "min_responses": 3}},
        "has a value beyond the bound of 0.001",
    ),
    "change by no examples": (temporal({}, learner=Moving), "by an update of no examples"),
    "no examples in one exchange": (
        {
            "learner": MixedUp,
            "settings": COUNTS,
            "rule": {"rule": "weighted_mean"},
            "flow_class": RoundsController,
        },
        "weight 0, expected 1 to the 14 training examples",
    ),
    "sums of profiles in a round": (
        temporal({"mixture": MIXTURE}, learner=Telling),
        "not declared, so it stays here: tensor 'sum:profiles.first'",
    ),
}


@pytest.mark.parametrize(("options", "reason"), BEFORE_ROUND_ONE.values(), ids=BEFORE_ROUND_ONE)
def test_a_run_stops_before_round_one(federation, options: dict[str, Any], reason: str) -> None:
    record = failed(federation(**options), reason)
    assert record.rounds == []
    assert record.artefacts == {}


@pytest.mark.parametrize(("options", "reason"), IN_A_ROUND.values(), ids=IN_A_ROUND)
def test_a_run_ends_in_a_round(federation, options: dict[str, Any], reason: str) -> None:
    failed(federation(**options), reason)
