# SPDX-License-Identifier: Apache-2.0
"""FedProx, SCAFFOLD and DRFA on losses whose optimum is known; also test_equals_one_process.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fed_equality import Case, in_one_process
from fed_harness import SITES, Make, completed
from fed_learner import ADAPTER
from fed_quadratic import (
    CURVES,
    EXAMPLES,
    GOALS,
    LR,
    STEPS,
    QuadraticLearner,
    fixed_point_of_fedavg,
    optimum,
)
from safetensors.torch import load_file
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.federation.server.run_state import load_state

CONTROL = f"control.{ADAPTER}"
UNIFORM = {"weighting": "uniform"}


def theta(rule: str, rounds: int, steps: int | None = None, **settings: Any) -> Tensor:
    """θ after rounds in one process."""
    case = Case(rule=rule, settings=settings, rounds=rounds, steps=steps)
    return in_one_process(case).state[ADAPTER][0]


# ---- what they are for -------------------------------------------------------------------------------------


def test_fedavg_ends_beside_the_optimum_and_scaffold_on_it() -> None:
    assert torch.allclose(theta("fedavg", 60, **UNIFORM), fixed_point_of_fedavg(), atol=1e-4)
    assert float((fixed_point_of_fedavg() - optimum()).norm()) > 0.3
    for control in ("gradients", "option_2"):
        assert torch.allclose(theta("scaffold", 60, control=control), optimum(), atol=1e-4)


def test_scaffold_is_what_the_paper_writes() -> None:
    value, c = torch.zeros(2), torch.zeros(2)
    controls = {site: torch.zeros(2) for site in SITES}
    for _ in range(5):
        changes, control_changes = [], []
        for site in SITES:
            a, b, local = torch.tensor(CURVES[site]), torch.tensor(GOALS[site]), value.clone()
            for _ in range(STEPS):
                local = local - LR * (a * (local - b) - controls[site] + c)
            control = controls[site] - c + (value - local) / (STEPS * LR)
            changes.append(local - value)
            control_changes.append(control - controls[site])
            controls[site] = control
        value = value + torch.stack(changes).mean(0)
        c = c + torch.stack(control_changes).sum(0) / len(SITES)
    for name in ("gradients", "option_2"):
        assert torch.allclose(theta("scaffold", 5, control=name), value, atol=1e-5)


def test_a_strong_proximal_term_moves_fedavg_towards_the_optimum_and_none_is_fedavg() -> None:
    plain = theta("fedavg", 100, **UNIFORM)
    assert torch.equal(plain, theta("fedprox", 100, mu=0.0, **UNIFORM))
    held = theta("fedprox", 100, mu=2.0, **UNIFORM)
    assert (held - optimum()).norm() < 0.7 * (plain - optimum()).norm()


def worst(value: Tensor) -> float:
    """The largest of the sites' losses."""
    losses = []
    for site in SITES:
        learner = QuadraticLearner({}, site, 0)
        learner.load_shared({ADAPTER: value[None]})
        losses.append(learner.loss().item())
    return max(losses)


def test_drfa_makes_the_worst_site_better_than_fedavg_does() -> None:
    drfa = in_one_process(Case(rule="drfa", settings={"m": 6}, rounds=150, steps=2))
    mean = torch.stack([state[ADAPTER][0] for state in drfa.states[-50:]]).mean(0)
    assert worst(mean) < 0.85 * worst(theta("fedavg", 150, steps=2, **UNIFORM))
    assert worst(mean) < 0.7 * worst(theta("fedavg", 150, steps=2))


# ---- in rounds ---------------------------------------------------------------------------------------------


def controls_of_sites(run: Any) -> Tensor:
    """c_k of all sites from their own disks: (sites, 1, 2)."""
    files = [next((run.root / site / "local_state").rglob("local_state.safetensors")) for site in SITES]
    return torch.stack([load_file(file)[f"terms.scaffold/own.{ADAPTER}"] for file in files])


def test_scaffold_doubles_the_bytes_and_c_is_the_mean_of_all_own(quadratics: Make) -> None:
    fedavg, scaffold = quadratics("fedavg", 3), quadratics("scaffold", 3)
    traffic = completed(fedavg).rounds[1].traffic["site-2"]
    doubled = completed(scaffold).rounds[1].traffic["site-2"]
    assert doubled.sent == 2 * traffic.sent
    # received: training and evaluation; only training brings c
    assert doubled.received == 1.5 * traffic.received
    state = load_state(scaffold.state)
    assert torch.allclose(state.rule["c"][CONTROL], controls_of_sites(scaffold).mean(0), atol=1e-6)
    assert torch.equal(state.totals[CONTROL], state.rule["c"][CONTROL])


def test_c_stays_the_mean_when_a_site_misses_a_round(quadratics: Make) -> None:
    class Heavy(QuadraticLearner):
        def fit(self, plan: RoundPlan) -> Update:
            update = super().fit(plan)
            if self.site == "site-2" and plan.round == 1:
                update.examples = 10**6  # the server refuses this one, after the site has kept its new c_k
            return update

    run = quadratics("scaffold", 4, min_responses=2, learner=Heavy)
    record = run.run()
    assert "10" in record.rounds[1].absent["site-2"]
    assert sorted(record.rounds[2].accepted) == list(SITES)
    c = load_state(run.state).rule["c"][CONTROL]
    assert torch.allclose(c, controls_of_sites(run).mean(0), atol=1e-6)


def test_drfa_records_who_was_drawn_and_lambda(quadratics: Make) -> None:
    run = quadratics("drfa", 6, {"m": 2, "step": 0.05})
    record = completed(run)
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
    assert load_state(run.state).rule["lambda"] == record.rounds[-1].rule["lambda"]


def test_a_site_that_keeps_its_training_losses_costs_itself_the_probe(
    quadratics: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quadratics("drfa", 3, {"m": 2, "step": 0.05})
    agreed = Policy(rules=PolicyConfig(train_losses=True))
    monkeypatch.setattr(
        "medflare.federation.site.executor.policy_of",
        lambda config, before: Policy() if config.site == "site-1" else agreed,
    )
    record = completed(run)
    refused = [entry.rule["not_probed"] for entry in record.rounds if "not_probed" in entry.rule]
    assert refused
    assert all(set(reasons) == {"site-1"} for reasons in refused)
    assert all("write 'train_losses: true' under 'policy'" in reasons["site-1"] for reasons in refused)
    assert all("site-1" not in entry.rule["probed"] for entry in record.rounds)


def test_a_drawn_site_that_fails_is_named_and_the_round_goes_on(quadratics: Make) -> None:
    class Failing(QuadraticLearner):
        def fit(self, plan: RoundPlan) -> Update:
            if self.site == "site-1":
                raise RuntimeError("no disk")
            return super().fit(plan)

    record = completed(quadratics("drfa", 3, {"m": 6}, learner=Failing))
    assert all("site-1" not in entry.accepted for entry in record.rounds)
    reasons = [entry.absent["site-1"] for entry in record.rounds]
    assert any("no disk" in reason or "E40" in reason for reason in reasons)
