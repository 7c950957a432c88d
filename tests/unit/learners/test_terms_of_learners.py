# SPDX-License-Identifier: Apache-2.0
"""FedProx, SCAFFOLD and DRFA with every method, on real learners with small models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from method_sites import Make

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import round_hints
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.in_process.loop import federate
from medflare.learners.client_terms import CLIENT_TERMS


def plan(number: int = 0, **hints: Any) -> RoundPlan:
    place = {"site_index": 0, "sites": 1, "summed": [0]}
    return RoundPlan(round=number, rounds=3, steps=2, hints=RoundHints.from_json(hints | place))


def size(state: State) -> float:
    return float(torch.cat([v.float().flatten() for v in state.values()]).norm())


def same(one: Update, two: Update) -> bool:
    return all(torch.equal(one.delta[name], two.delta[name]) for name in two.delta)


def test_without_mu_an_update_is_the_same_to_the_last_bit_and_with_it_not(
    make_learner: Make, any_method: str
) -> None:
    plain, none, held = (
        make_learner(any_method).fit(plan(**hints)) for hints in ({}, {"fedprox": {"mu": 0.0}}, HELD)
    )
    assert same(none, plain)
    assert not same(held, plain)
    assert held.metrics["drift"] > 0
    assert (held.sums.keys(), held.factor) == (plain.sums.keys(), 1.0)


HELD = {"fedprox": {"mu": 100.0}}
DRAWN = {"importance": {"weights": {}, "largest": 2.0}}
"""What the rules that draw sites tell those they drew."""


@pytest.mark.parametrize("name", sorted(CLIENT_TERMS))
def test_an_update_holds_the_sums_that_were_declared(make_learner: Make, any_method: str, name: str) -> None:
    learner = make_learner(any_method)
    hints = DRAWN if name == "importance" else round_hints(make_rule(name, {})).to_json()
    spec = learner.sums_spec(1) | learner.requested_sums(RoundHints.from_json(hints))
    update = learner.fit(plan(**hints))
    assert {n: (tuple(t.shape), t.dtype) for n, t in update.sums.items()} == spec
    assert all(torch.isfinite(t).all() for t in update.sums.values())
    if name == "scaffold":
        learned = {
            n.removeprefix("control.") for n, t in update.sums.items() if n.startswith("control.") and t.any()
        }
        moved = {n for n, t in update.delta.items() if t.any() and "running" not in n and "tracked" not in n}
        assert moved == learned
        assert update.metrics["control_lr"] > 0
    if name == "drfa":
        snapshot = {
            n.removeprefix("snapshot."): t for n, t in update.sums.items() if n.startswith("snapshot.")
        }
        assert all(torch.allclose(snapshot[n], t.float(), atol=1e-6) for n, t in update.delta.items())


def test_control_variates_survive_a_restart_and_change_the_next_round(
    make_learner: Make, any_method: str
) -> None:
    hints = {"scaffold": {"control": "gradients"}}
    learner, again, fresh = make_learner(any_method), make_learner(any_method), make_learner(any_method)
    first = learner.fit(plan(0, **hints))
    tensors, values = learner.local_state()
    again.load_local_state(tensors, values)
    totals = {n: t for n, t in first.sums.items() if n.startswith("control.")}
    start = {n: t.clone() for n, t in fresh.initial_shared().items()}
    second = []
    for each in (learner, again):
        each.load_shared(start)
        shifted = plan(1, **hints)
        given = RoundPlan(
            round=1, rounds=3, steps=2, hints=shifted.hints, totals={n: 3 * t for n, t in totals.items()}
        )
        second.append(each.fit(given))
    assert same(*second)
    assert second[0].metrics["control_shift"] == pytest.approx(2 * size(totals), rel=1e-4)
    assert all(torch.equal(second[0].sums[n], second[1].sums[n]) for n in second[0].sums)


def test_a_probe_is_the_loss_alone_on_so_many_training_examples(make_learner: Make, any_method: str) -> None:
    learner = make_learner(any_method)
    few = [learner.evaluate("train", plan(r, probe=3)) for r in (0, 0, 1)]
    assert set(few[0]) == {"loss"}
    assert few[0] == few[1] != few[2]
    every = learner.evaluate("train", plan(probe=10**6))["loss"]
    assert every == pytest.approx(learner.evaluate("train", plan(probe=10**5))["loss"])
    assert every > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedprox", {"mu": 0.01}),
        ("scaffold", {}),
        ("drfa", {"m": 2}),
    ],
)
def test_the_loss_of_a_tagger_falls(make_learner: Make, name: str, settings: dict[str, Any]) -> None:
    learners = {site: make_learner("token_classification", site) for site in ("site-1", "site-2")}
    start = learners["site-1"].initial_shared()

    def loss(state: State) -> float:
        found = []
        for learner in learners.values():
            learner.load_shared(state)
            found.append(learner.evaluate("val", plan(loss_only=True))["loss"])
        return sum(found) / len(found)

    before, rule = loss(start), make_rule(name, settings)
    end = federate(learners, rule, 4, lambda r: RoundPlan(round=r, rounds=4, steps=6))
    assert loss(end) < 0.8 * before
