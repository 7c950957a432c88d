# SPDX-License-Identifier: Apache-2.0
"""DDCS and its baselines through controller and executors, in the clear and under masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import fed_harness
import pytest
import torch
from fed_quadratic import CURVES, NAME, QuadraticLearner, build_quadratic
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.federation.run_state import load_state
from medflare.learners.base import RoundPlan
from medflare.learners.loop import federate


@pytest.fixture
def quadratics(federation, monkeypatch: pytest.MonkeyPatch):
    """A federation in FLARE's components over three sites with quadratic losses."""
    monkeypatch.setattr(fed_harness, "build_toy", build_quadratic)

    def make(name: str, rounds: int, settings: dict[str, Any], **controller: Any) -> Any:
        given = {"rule": name, "rule_settings": settings}
        return federation(controller={"num_rounds": rounds, "seed": 7, **controller}, rule=given)

    return make


def in_one_process(name: str, rounds: int, least: int, **settings: Any) -> Tensor:
    learners = {site: QuadraticLearner({}, site, 0) for site in sorted(CURVES)}
    rule = make_rule(name, settings)
    rule.draw = partial(rule.draw, least=least)  # type: ignore[method-assign]
    return federate(learners, rule, rounds, lambda r: RoundPlan(round=r, rounds=rounds, seed=7))[NAME]


@pytest.mark.parametrize("name", ["ddcs", "uniform_selection", "importance_sampling"])
def test_a_run_in_flare_is_the_run_in_one_process(quadratics, name: str) -> None:
    run = quadratics(name, 4, {"draws": 2}, min_accepted=1)
    record = run.run()
    assert record.status == "completed", record.reason
    assert torch.equal(load_state(run.folder / "state").shared[NAME], in_one_process(name, 4, 1, draws=2))
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 2
        assert set(entry.rule["drawn"]) == set(entry.accepted)


def test_under_masks_three_sites_are_drawn_and_the_step_is_the_same(quadratics) -> None:
    run = quadratics("ddcs", 4, {"draws": 5}, protection="masking")
    record = run.run()
    assert record.status == "completed", record.reason
    found = load_state(run.folder / "state").shared[NAME]
    assert torch.allclose(found, in_one_process("ddcs", 4, 3, draws=5), atol=1e-4)
    assert all(len(entry.rule["drawn"]) == 3 for entry in record.rounds)


def test_under_masks_two_draws_are_refused(quadratics) -> None:
    record = quadratics("ddcs", 2, {"draws": 2}, protection="masking").run()
    assert record.status == "failed"
    assert "2 draws from 3 sites give 3 different ones never" in record.reason
