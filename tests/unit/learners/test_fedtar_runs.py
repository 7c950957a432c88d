# SPDX-License-Identifier: Apache-2.0
"""Whole runs of FedTAR and its baselines in one process, over sites that have all visits or one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedtar_sites import VISITS, equal, learner, plan, site

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import round_hints
from medflare.aggregation.temporal import TemporalResidual
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits, visit_by_visit
from medflare.learners.fedtar.learner import FedTARLearner
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.learners.fedtar.visit_sums import SLOPES


def test_with_one_visit_a_run_is_fedavg_to_the_last_bit(
    visit_hospitals: list[Path], tiny_backbone: Path
) -> None:
    def sites() -> dict[str, FedTARLearner]:
        return {
            f"site-{number + 1}": learner(site(folder, tiny_backbone, f"site-{number + 1}", most=1), visits=1)
            for number, folder in enumerate(visit_hospitals)
        }

    def asked(number: int) -> RoundPlan:
        return plan(number, 3, steps=2)

    one = federate_visits(sites(), TemporalResidual(visits=1), 3, asked)
    other = federate(sites(), make_rule("weighted_mean", {}), 3, lambda n: replace(asked(n), rounds=3))
    assert equal(one, other)


def test_a_site_restarted_in_the_middle_of_a_round_continues_as_if_nothing_had_happened(fedtar: Any) -> None:
    def run(restart_before: int | None) -> tuple[State, list[float]]:
        """Two rounds; the site is made anew from its local state before an exchange."""
        site_learner, rule, told = (
            fedtar(mixture={"source": "federated"}),
            TemporalResidual(visits=VISITS, lr=1e-2),
            [],
        )
        agree_on_mixture({"site-1": site_learner.patients}, site_learner.settings.mixture, 2, 0)
        state = site_learner.initial_shared()
        for exchange in range(2 * VISITS):
            if exchange == restart_before:
                kept = site_learner.local_state()
                site_learner = fedtar(mixture={"source": "federated"})
                site_learner.load_local_state(*kept)
            rule.begin(state)
            site_learner.load_shared(state)
            update = site_learner.fit(plan(exchange, 2 * VISITS, hints=round_hints(rule), steps=2))
            told += update.sums[SLOPES].tolist()
            rule.add("site-1", update)
            state = rule.finish()
        return state, told

    whole, slopes = run(None)
    assert any(slopes)
    for exchange in (2, 4):
        state, told = run(exchange)
        assert equal(state, whole)
        assert told == slopes


def test_sites_agree_on_a_mixture_and_visits_are_learnt(fedtar: Any) -> None:
    learners = {
        f"site-{number + 1}": fedtar(number, lr=1e-2, mixture={"source": "federated"}) for number in range(2)
    }
    profiles = {name: site_learner.patients for name, site_learner in learners.items()}
    agree_on_mixture(profiles, MixtureSettings(components=4, least_patients=2), 2, 0)
    first = learners["site-1"].patients.mixture
    assert torch.equal(first.means, learners["site-2"].patients.mixture.means)
    state = learners["site-1"].initial_shared()
    rows = {name: site_learner.rows("val") for name, site_learner in learners.items()}

    def loss(at: State) -> float:
        for site_learner in learners.values():
            site_learner.load_shared(at)
        return sum(site_learner.rows_loss(rows[name]) for name, site_learner in learners.items())

    before = loss(state)
    rule = TemporalResidual(visits=VISITS, alpha_mode="beta_softmax", lr=1e-2)
    after = loss(federate_visits(learners, rule, 3, lambda n: plan(n, steps=6)))
    assert after < before - 0.2


def test_a_site_with_a_single_visit_takes_part(visit_hospitals: list[Path], tiny_backbone: Path) -> None:
    learners = {
        "site-1": learner(site(visit_hospitals[0], tiny_backbone)),
        "site-2": learner(site(visit_hospitals[1], tiny_backbone, "site-2", most=1)),
    }
    told: list[dict[str, int]] = []
    rule = TemporalResidual(visits=VISITS, lr=1e-2)
    federate_visits(
        learners,
        rule,
        2,
        lambda n: plan(n, steps=1),
        lambda n, s, updates: told.append({name: update.examples for name, update in updates.items()}),
    )
    assert [found["site-2"] > 0 for found in told] == [True, False, False] * 2
    assert all(found["site-1"] > 0 for found in told)


@pytest.mark.parametrize("rule", ["fedprox", "scaffold", "fedadam", "fedyogi", "drfa", "l_fedavg"])
def test_baselines_pool_all_visits(fedtar: Any, rule: str) -> None:
    learners = {
        "site-1": fedtar(0, variant="pooled_baseline"),
        "site-2": fedtar(1, variant="pooled_baseline"),
    }
    state = learners["site-1"].initial_shared()
    run = federate(learners, make_rule(rule, {}), 2, lambda n: plan(n, steps=2))
    assert not equal(run, state)
    assert all(torch.isfinite(value).all() for value in run.values())


@pytest.mark.parametrize("rule", ["weighted_mean", "fedprox", "scaffold", "fedadam", "fedyogi", "drfa"])
def test_baselines_go_through_visits_in_turn_where_a_site_has_but_one(
    visit_hospitals: list[Path], tiny_backbone: Path, rule: str
) -> None:
    """TAR-15: the same exchanges; who has nothing of a visit is idle."""
    learners = {
        "site-1": learner(site(visit_hospitals[0], tiny_backbone), variant="pooled_baseline"),
        "site-2": learner(
            site(visit_hospitals[1], tiny_backbone, "site-2", most=1), variant="pooled_baseline"
        ),
    }
    examples: list[int] = []
    state = federate(
        learners,
        make_rule(rule, {}),
        2 * VISITS,
        visit_by_visit(lambda n: plan(n, steps=1), VISITS),
        lambda n, s, updates: examples.append(updates["site-2"].examples if "site-2" in updates else 0),
    )
    assert not any(examples[visit] for visit in (1, 2, 4, 5))
    assert any(examples)
    assert all(torch.isfinite(value).all() for value in state.values())
