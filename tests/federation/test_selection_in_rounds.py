# SPDX-License-Identifier: Apache-2.0
"""DDCS and its baselines through controller and executors, in the clear and under masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fed_quadratic import CURVES, NAME, QuadraticLearner
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.core.plan import RoundPlan
from medflare.federation.server.run_state import load_state
from medflare.in_process.loop import federate


def in_one_process(name: str, rounds: int, least: int, **settings: Any) -> Tensor:
    learners = {site: QuadraticLearner({}, site, 0) for site in sorted(CURVES)}
    rule = make_rule(name, settings)
    rule.sample_clients = partial(rule.sample_clients, min_clients=least)  # type: ignore[method-assign]
    return federate(learners, rule, rounds, lambda r: RoundPlan(round=r, rounds=rounds, seed=7))[NAME]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ddcs", {"draws": 2, "floor": 1.0}),
        ("uniform_selection", {"draws": 2}),
        ("importance_sampling", {"draws": 2}),
    ],
)
def test_a_run_in_flare_is_the_run_in_one_process(quadratics, name: str, settings: dict[str, Any]) -> None:
    """DDCS at φ = 1, as no two runs see the same seconds; by a simulated clock `test_latencies_in_rounds`."""
    run = quadratics(name, 4, settings)
    record = run.run()
    assert record.status == "completed", record.reason
    assert torch.equal(load_state(run.folder / "state").shared[NAME], in_one_process(name, 4, 1, **settings))
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 2
        assert set(entry.rule["drawn"]) == set(entry.accepted)


def test_under_masks_three_sites_are_drawn_and_the_step_is_the_same(quadratics) -> None:
    run = quadratics("ddcs", 4, {"draws": 5, "floor": 1.0}, protection="masking")
    record = run.run()
    assert record.status == "completed", record.reason
    found = load_state(run.folder / "state").shared[NAME]
    assert torch.allclose(found, in_one_process("ddcs", 4, 3, draws=5, floor=1.0), atol=1e-4)
    assert all(len(entry.rule["drawn"]) == 3 for entry in record.rounds)


def test_under_masks_two_draws_are_refused(quadratics) -> None:
    record = quadratics("ddcs", 2, {"draws": 2}, protection="masking").run()
    assert record.status == "failed"
    assert "2 draws from 3 sites give 3 different ones never" in record.reason
