# SPDX-License-Identifier: Apache-2.0
"""FedProx, SCAFFOLD and DRFA through controller and executors, on losses whose optimum is known."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fed_quadratic import (
    CURVES,
    EXAMPLES,
    GOALS,
    LR,
    NAME,
    STEPS,
    QuadraticLearner,
    fixed_point_of_fedavg,
    optimum,
)
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.run_state import load_state
from medflare.in_process.loop import federate

SITES = sorted(CURVES)
UNIFORM = {"weighting": "uniform"}


def in_one_process(
    name: str, rounds: int, on_round: Any = None, steps: int | None = None, **settings: Any
) -> Tensor:
    learners = {site: QuadraticLearner({}, site, 0) for site in SITES}
    made = make_rule(name, settings)

    def plan(number: int) -> RoundPlan:
        return RoundPlan(round=number, rounds=rounds, seed=7, steps=steps)

    return federate(learners, made, rounds, plan, on_round)[NAME][0]


# ---- what they are for -------------------------------------------------------------------------------------


def test_fedavg_ends_beside_the_optimum_and_scaffold_on_it() -> None:
    assert torch.allclose(in_one_process("fedavg", 60, **UNIFORM), fixed_point_of_fedavg(), atol=1e-4)
    assert float((fixed_point_of_fedavg() - optimum()).norm()) > 0.3
    for control in ("gradients", "option_2"):
        assert torch.allclose(in_one_process("scaffold", 60, control=control), optimum(), atol=1e-4)


def test_scaffold_is_what_the_paper_writes() -> None:
    theta, c = torch.zeros(2), torch.zeros(2)
    own = {site: torch.zeros(2) for site in SITES}
    for _ in range(5):
        changes, controls = [], []
        for site in SITES:
            a, b, mine = torch.tensor(CURVES[site]), torch.tensor(GOALS[site]), theta.clone()
            for _ in range(STEPS):
                mine = mine - LR * (a * (mine - b) - own[site] + c)
            new = own[site] - c + (theta - mine) / (STEPS * LR)
            changes.append(mine - theta)
            controls.append(new - own[site])
            own[site] = new
        theta = theta + torch.stack(changes).mean(0)
        c = c + torch.stack(controls).sum(0) / len(SITES)
    for control in ("gradients", "option_2"):
        assert torch.allclose(in_one_process("scaffold", 5, control=control), theta, atol=1e-5)


def test_a_strong_proximal_term_moves_fedavg_towards_the_optimum_and_none_is_fedavg() -> None:
    plain = in_one_process("fedavg", 200, **UNIFORM)
    assert torch.equal(plain, in_one_process("fedprox", 200, mu=0.0, **UNIFORM))
    held = in_one_process("fedprox", 200, mu=2.0, **UNIFORM)
    assert (held - optimum()).norm() < 0.7 * (plain - optimum()).norm()


def worst(theta: Tensor) -> float:
    """The largest of the sites' losses."""
    found = []
    for site in SITES:
        learner = QuadraticLearner({}, site, 0)
        learner.load_shared({NAME: theta[None]})
        found.append(learner.loss().item())
    return max(found)


def test_drfa_makes_the_worst_site_better_than_fedavg_does() -> None:
    last: list[Tensor] = []

    def remember(number: int, state: State, updates: Any) -> None:
        last.append(state[NAME][0])

    in_one_process("drfa", 150, remember, steps=2, m=6)
    mean = torch.stack(last[-50:]).mean(0)
    assert worst(mean) < 0.85 * worst(in_one_process("fedavg", 150, steps=2, **UNIFORM))
    assert worst(mean) < 0.7 * worst(in_one_process("fedavg", 150, steps=2))


# ---- the same in rounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedprox", {"mu": 0.3}), ("scaffold", {}), ("scaffold", {"control": "option_2"}), ("drfa", {"m": 2})],
    ids=str,
)
def test_a_run_in_flare_is_the_run_in_one_process(quadratics, name: str, settings: dict[str, Any]) -> None:
    run = quadratics(name, 4, settings)
    record = run.run()
    assert record.status == "completed", record.reason
    found = load_state(run.folder / "state").shared
    assert set(found) == {NAME}
    assert torch.equal(found[NAME][0], in_one_process(name, 4, **settings))


@pytest.mark.parametrize("name", ["fedprox", "scaffold"])
def test_under_masks_the_run_is_the_same_and_no_site_is_seen(quadratics, name: str) -> None:
    run = quadratics(name, 4, protection="masking")
    record = run.run()
    assert record.status == "completed", record.reason
    found = load_state(run.folder / "state").shared[NAME][0]
    assert torch.allclose(found, in_one_process(name, 4), atol=1e-5)
    assert "weights" not in record.rounds[-1].rule  # nobody can tell what each site's update counted


def test_under_masks_drfa_draws_enough_sites_to_hide_among(quadratics) -> None:
    run = quadratics("drfa", 4, {"m": 2, "step": 0.05}, protection="masking")
    record = run.run()
    assert record.status == "completed", record.reason
    assert all(len(entry.rule["drawn"]) == 3 for entry in record.rounds)
    assert all(len(entry.rule["probed"]) == 2 for entry in record.rounds)
    learners = {site: QuadraticLearner({}, site, 0) for site in SITES}
    rule = make_rule("drfa", {"m": 2, "step": 0.05})
    rule.sample_clients = partial(rule.sample_clients, min_clients=3)  # type: ignore[method-assign]
    plain = federate(learners, rule, 4, lambda r: RoundPlan(round=r, rounds=4, seed=7))
    assert torch.allclose(load_state(run.folder / "state").shared[NAME], plain[NAME], atol=1e-5)
    assert record.rounds[-1].rule["lambda"] == pytest.approx(rule.report()["lambda"], abs=1e-5)


def test_a_canary_leaves_no_control_variates(quadratics) -> None:
    run = quadratics("scaffold", 3, canary=True)
    run.run()
    found = load_state(run.folder / "state").shared[NAME][0]
    assert torch.equal(found, in_one_process("scaffold", 3))


def test_scaffold_doubles_the_bytes_and_c_is_the_mean_of_all_own(quadratics) -> None:
    traffic, states = {}, {}
    for name in ("fedavg", "scaffold"):
        run = quadratics(name, 3)
        traffic[name] = run.run().rounds[1].traffic["site-2"]
        states[name] = load_state(run.folder / "state")
        executors = run.executors
    assert traffic["scaffold"].sent == 2 * traffic["fedavg"].sent
    # received: training and evaluation; only training brings c
    assert traffic["scaffold"].received == 1.5 * traffic["fedavg"].received
    own = [torch.from_numpy(local_controls(run.root, site)) for site in executors]
    c = states["scaffold"].rule["c"][f"control.{NAME}"]
    assert torch.allclose(c, torch.stack(own).mean(0), atol=1e-6)
    assert torch.equal(states["scaffold"].totals[f"control.{NAME}"], c)


def local_controls(root: Any, site: str) -> Any:
    """c_k from the site's own disk."""
    from safetensors.numpy import load_file

    (file,) = (root / site / "local_state").rglob("local_state.safetensors")
    return load_file(file)[f"terms.scaffold/own.{NAME}"]


def test_c_stays_the_mean_when_a_site_misses_a_round(quadratics, monkeypatch) -> None:
    original = QuadraticLearner.fit

    def fit(self: QuadraticLearner, plan: RoundPlan) -> Update:
        update = original(self, plan)
        if self.site == "site-2" and plan.round == 1:
            update.examples = 10**6  # the server refuses this one, after the site has kept its new c_k
        return update

    monkeypatch.setattr(QuadraticLearner, "fit", fit)
    run = quadratics("scaffold", 4, min_responses=2)
    record = run.run()
    assert "10" in record.rounds[1].absent["site-2"]
    assert sorted(record.rounds[2].accepted) == SITES
    own = [torch.from_numpy(local_controls(run.root, site)) for site in SITES]
    c = load_state(run.folder / "state").rule["c"][f"control.{NAME}"]
    assert torch.allclose(c, torch.stack(own).mean(0), atol=1e-6)


def test_drfa_records_who_was_drawn_and_lambda(quadratics) -> None:
    run = quadratics("drfa", 6, {"m": 2, "step": 0.05})
    record = run.run()
    for entry in record.rounds:
        drawn = entry.rule["drawn"]
        assert sum(drawn.values()) == 2
        assert sorted(entry.accepted) == sorted(drawn)
        assert entry.absent == {s: "not drawn by the rule for this round" for s in SITES if s not in drawn}
        assert len(entry.rule["probed"]) == 2
        assert sum(entry.rule["lambda"].values()) == pytest.approx(1)
        assert {f"val_{n}" for n in ("loss",)} <= set(entry.mean)
        assert all("val_loss" in entry.metrics[site] for site in SITES)
    assert len({tuple(entry.rule["drawn"]) for entry in record.rounds}) > 1
    start = {site: n / sum(EXAMPLES.values()) for site, n in EXAMPLES.items()}
    assert record.rounds[-1].rule["lambda"] != pytest.approx(start, abs=1e-3)
    assert load_state(run.folder / "state").rule["lambda"] == record.rounds[-1].rule["lambda"]


def test_a_drawn_site_that_fails_is_named_and_the_round_goes_on(quadratics, monkeypatch) -> None:
    original = QuadraticLearner.fit

    def fit(self: QuadraticLearner, plan: RoundPlan) -> Update:
        if self.site == "site-1":
            raise RuntimeError("no disk")
        return original(self, plan)

    monkeypatch.setattr(QuadraticLearner, "fit", fit)
    record = quadratics("drfa", 3, {"m": 6}).run()
    assert record.status == "completed"
    assert all("site-1" not in entry.accepted for entry in record.rounds)
    assert any(
        "no disk" in entry.absent["site-1"] or "E40" in entry.absent["site-1"] for entry in record.rounds
    )


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "drfa"])
def test_a_method_that_cannot_do_it_stops_the_run_before_round_one(federation, name: str) -> None:
    record = federation(controller={"num_rounds": 1}, rule={"rule": name}).run()
    assert record.status == "failed"
    assert not record.rounds
    assert f"rule '{name}' asks something of every optimiser step" in record.reason
