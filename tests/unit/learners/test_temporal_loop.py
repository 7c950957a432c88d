# SPDX-License-Identifier: Apache-2.0
"""Temporal rounds in one process: what sites tell, the meta-gradient of a run, missing visits, baselines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from visit_toys import VisitSite

from medflare.aggregation import make_rule
from medflare.aggregation.temporal import TemporalResidual
from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits, visit_by_visit
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.learners.fedtar.visit_sums import (
    EXAMPLES,
    LARGEST,
    PATIENTS,
    SLOPES,
    YEARS,
    VisitTrail,
    visit_sums_spec,
    visit_times,
)


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=1)


def sites(*counts: list[int], drift: float = 0.5) -> dict[str, VisitSite]:
    return {f"s{number}": VisitSite(list(own), drift, seed=number) for number, own in enumerate(counts)}


def val_loss(learners: dict[str, VisitSite], w: Tensor) -> Tensor:
    """Over all validation examples of all sites."""
    counts = [len(site.val[0]) for site in learners.values()]
    losses = [n * site.loss(w, site.val) for n, site in zip(counts, learners.values(), strict=True)]
    return torch.stack(losses).sum() / sum(counts)


# ---- a whole run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["softmax", "sigmoid", "beta_softmax"])
@pytest.mark.parametrize(
    "counts", [([9, 7, 5], [4, 8, 6]), ([9, 0, 5], [4, 0, 0])], ids=["every visit", "visits missing"]
)
def test_the_slopes_of_sites_are_the_meta_gradient_of_the_pooled_validation_loss(
    mode: Any, counts: Any
) -> None:
    """∂L_val/∂α by autograd through the round's recursion, with w̄ as it was, to 1e-10."""
    learners, rule = sites(*counts), TemporalResidual(visits=3, alpha_mode=mode, lr=1e-3)
    path: list[Tensor] = []
    federate_visits(learners, rule, 1, plan, lambda number, state, updates: path.append(state["w"].clone()))
    alpha, seen = rule.alpha.clone().requires_grad_(), rule.stepped.tolist()
    path = [torch.zeros(4, dtype=torch.float64), *path]
    w = path[0]
    for t in range(3):
        mean = path[t] + (path[t + 1] - path[t]) / rule.alpha[t]
        w = w + alpha[t] * (mean - w) if seen[t] else w
    assert torch.allclose(w, path[-1], atol=1e-14)
    (slow,) = torch.autograd.grad(val_loss(learners, w), alpha)

    hint = rule.round_hints()
    rule.begin({"w": path[-1]})
    for name, site in learners.items():
        site.load_shared({"w": path[-1]})
        rule.add(name, site.fit(RoundPlan(round=3, rounds=9, hints=hint)))
    rule.finish()
    assert rule.report()["alpha_gradient"] == pytest.approx(slow.tolist(), abs=1e-10)
    assert float(slow.abs().max()) > 1e-3


@pytest.mark.parametrize("mode", ["softmax", "sigmoid", "beta_softmax"])
def test_coefficients_are_learnt_that_lower_the_validation_loss(mode: Any) -> None:
    """Answers drift and the validation sets are of the last visit."""
    found = {}
    for lr in (0.0, 0.03):
        learners, rule = (
            sites([9, 9, 9], [9, 9, 9], drift=1.0),
            TemporalResidual(visits=3, alpha_mode=mode, lr=lr),
        )
        found[lr] = float(val_loss(learners, federate_visits(learners, rule, 12, plan)["w"]))
    assert found[0.03] < 0.6 * found[0.0]


def test_weights_learnt_as_such_move_to_the_visit_that_validation_is_of_and_softmax_is_caught_before() -> (
    None
):
    """A softmax that has chosen visit 2 has no gradient left for visit 3."""
    found = {}
    for mode in ("softmax", "beta_softmax"):
        learners, rule = (
            sites([9, 9, 9], [9, 9, 9], drift=1.0),
            TemporalResidual(visits=3, alpha_mode=mode, lr=0.1),
        )
        federate_visits(learners, rule, 12, plan)
        found[mode] = rule.report()["beta"][-1]
    assert found["beta_softmax"] > 0.8
    assert found["softmax"] < 0.01


def test_with_one_visit_a_run_is_fedavg_to_the_last_bit() -> None:
    one = federate_visits(sites([9], [4]), TemporalResidual(visits=1), 5, plan)
    other = federate(sites([9], [4]), make_rule("fedavg", {}), 5, plan)
    assert torch.equal(one["w"], other["w"])


def test_a_constant_coefficient_of_1_is_fedavg_over_one_visit_after_the_other() -> None:
    rule = TemporalResidual(visits=3, alpha_mode="constant", alpha=1.0)
    one = federate_visits(sites([9, 3, 4], [4, 8, 8]), rule, 2, plan)
    other = federate(sites([9, 3, 4], [4, 8, 8]), make_rule("fedavg", {}), 6, visit_by_visit(plan, 3))
    assert torch.equal(one["w"], other["w"])


def test_without_turns_a_learner_trains_on_all_visits_at_once() -> None:
    pooled = federate(sites([9, 3, 4]), make_rule("fedavg", {}), 1, plan)
    whole, turns = (
        sites([9, 3, 4])["s0"],
        federate(sites([9, 3, 4]), make_rule("fedavg", {}), 1, visit_by_visit(plan, 3)),
    )
    assert len(whole.rows(plan(0))[0]) == 16
    assert not torch.equal(pooled["w"], turns["w"])


def test_a_site_with_a_single_visit_and_one_without_any_take_part() -> None:
    learners = sites([9, 7, 5], [6, 0, 0], [0, 0, 0])
    weights: list[dict[str, float]] = []
    rule = TemporalResidual(visits=3, lr=0.05)
    federate_visits(learners, rule, 3, plan, lambda *_: weights.append(rule.report()["weights"]))
    assert [sorted(found) for found in weights[:3]] == [["s0", "s1"], ["s0"], ["s0"]]
    assert weights[0] == {"s0": 0.6, "s1": 0.4}
    assert learners["s2"].trail.last == 3


def test_every_exchange_carries_the_declared_sums_and_only_the_first_says_anything() -> None:
    learners, rule, found = sites([9, 7]), TemporalResidual(visits=2, embedding="days", lr=0.1), []
    federate_visits(learners, rule, 2, plan, lambda n, state, updates: found.append(updates["s0"].sums))
    for sums in found:
        assert {n: (tuple(t.shape), t.dtype) for n, t in sums.items()} == visit_sums_spec(2)
    said = [[name for name, value in sums.items() if value.any()] for sums in found]
    assert said == [[YEARS, PATIENTS], [], [SLOPES, EXAMPLES, YEARS, PATIENTS], []]
    assert rule.schedule.years[0, 1] == pytest.approx(200 / 365.25)


def test_plans_count_exchanges() -> None:
    seen: list[tuple[int, int]] = []
    learners = sites([9, 7])
    fit = learners["s0"].fit
    learners["s0"].fit = lambda plan: (seen.append((plan.round, plan.rounds)), fit(plan))[1]  # type: ignore[method-assign]
    federate_visits(learners, TemporalResidual(visits=2), 2, plan)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


# ---- the trail ---------------------------------------------------------------------------------------------


def hinted(number: int, visit: int, visits: int = 2, **more: bool) -> RoundPlan:
    hint = {"round": number, "visit": visit, "visits": visits, "slopes": True, "days": False, **more}
    return RoundPlan(round=0, rounds=1, hints=RoundHints.from_json({"temporal": hint}))


def walk(trail: VisitTrail, steps: list[tuple[int, int]], start: float = 0.0) -> State:
    """The last exchange's sums; w grows by 1, 2, 3, ... and g is 10."""
    sums: State = {}
    w = start
    for number, (at, visit) in enumerate(steps):
        w += number
        sums = trail.receive(
            hinted(at, visit), {"w": torch.tensor([w])}, lambda: ({"w": torch.tensor([10.0])}, 3)
        )
    return sums


def test_slopes_are_inner_products_times_examples() -> None:
    sums = walk(VisitTrail(2), [(0, 1), (0, 2), (1, 1)])
    assert sums[SLOPES].tolist() == [3 * 10.0, 3 * 20.0]
    assert float(sums[EXAMPLES]) == 3


@pytest.mark.parametrize(
    "steps",
    [[(0, 1), (1, 1)], [(0, 2), (1, 1)], [(0, 1), (0, 2), (2, 1)], [(0, 1), (0, 2), (1, 2)], [(1, 1)]],
    ids=[
        "second visit missed",
        "first visit missed",
        "a round missed",
        "not the first exchange",
        "just joined",
    ],
)
def test_a_site_that_missed_an_exchange_tells_no_slopes(steps: list[tuple[int, int]]) -> None:
    sums = walk(VisitTrail(2), steps)
    assert not sums[SLOPES].any()
    assert not sums[EXAMPLES].any()


def test_a_site_that_missed_an_exchange_is_back_in_the_round_after_the_next() -> None:
    steps = [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert walk(VisitTrail(2), steps)[SLOPES].tolist() == [3 * 20.0, 3 * 30.0]


def test_an_exchange_that_is_repeated_counts_as_it_was_last_seen() -> None:
    """The canary's, for instance."""
    assert walk(VisitTrail(2), [(0, 1), (0, 1), (0, 2), (1, 1)])[SLOPES].tolist() == [3 * 20.0, 3 * 30.0]


@pytest.mark.parametrize(("wanted", "rounds"), [(False, []), (True, [1, 2])])
def test_a_gradient_is_only_asked_for_where_somebody_wants_it(wanted: bool, rounds: list[int]) -> None:
    trail, asked = VisitTrail(1), []

    def gradient() -> tuple[State, int]:
        asked.append(number)
        return {"w": torch.ones(1)}, 3

    for number in range(3):
        trail.receive(hinted(number, 1, 1, slopes=wanted), {"w": torch.ones(1)}, gradient)
    assert asked == rounds


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_slope_that_is_no_number_is_not_told(broken: float) -> None:
    trail = VisitTrail(1)
    for number in range(2):
        sums = trail.receive(
            hinted(number, 1, 1), {"w": torch.ones(1)}, lambda: ({"w": torch.tensor([broken])}, 3)
        )
    assert not sums[EXAMPLES].any()
    assert not sums[SLOPES].any()


def test_no_site_has_all_the_say() -> None:
    trail = VisitTrail(1)
    for number in range(2):
        w = torch.full((1,), 1e9 * number)
        sums = trail.receive(hinted(number, 1, 1), {"w": w}, lambda: ({"w": torch.ones(1)}, 3))
    assert sums[SLOPES].tolist() == [3 * LARGEST]


def test_a_trail_survives_a_restart_in_the_middle_of_a_round() -> None:
    trail, again = VisitTrail(2), VisitTrail(2)
    walk(trail, [(0, 1), (0, 2)])
    tensors, values = trail.state()
    again.restore({**tensors, "order.position": torch.ones(1)}, values)
    now = hinted(1, 1), {"w": torch.tensor([3.0])}, lambda: ({"w": torch.tensor([10.0])}, 3)
    assert torch.equal(again.receive(*now)[SLOPES], trail.receive(*now)[SLOPES])
    assert trail.receive(*now)[SLOPES].shape == (2,)


def test_a_rule_of_another_number_of_visits_is_refused() -> None:
    with pytest.raises(
        UpdateError, match=r"rule has 2 visits a round, and the method's setting `visits` is 3"
    ):
        walk(VisitTrail(3), [(0, 1)])


def test_times_of_irregular_visits() -> None:
    """Two patients; the second missed visit 2, and the days of its last visit are unknown."""
    year = 365.25
    visits = [
        (1, None, 0.0),
        (2, year, year),
        (3, 2 * year, 3 * year),
        (1, None, 0.0),
        (3, year, year),
        (4, None, None),
    ]
    times = visit_times(visits, 3)
    assert times[PATIENTS].tolist() == [2, 1, 2]
    assert times[YEARS].tolist() == [[0, 1, 3], [0, 1, 4]]
    assert visit_times(visits, 2)[PATIENTS].tolist() == [2, 1]


def test_days_that_go_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="visit 2 is -3 days after"):
        visit_times([(2, -3.0, 4.0)], 3)


# ---- the mixture -------------------------------------------------------------------------------------------


def test_sites_agree_on_one_mixture_before_the_rounds() -> None:
    learners = sites([9, 7, 5], [14, 8, 6], [0, 0, 0])
    server = agree_on_mixture(learners, MixtureSettings(), 2, seed=0)
    assert server.mixture is not None
    for site in learners.values():
        assert site.mixture is not None
        assert torch.equal(site.mixture.means, server.mixture.means)
