# SPDX-License-Identifier: Apache-2.0
"""Temporal residual aggregation: vectors 3, convexity, the exact meta-gradient, missing visits, restarts."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.aggregation.coefficients import (
    AlphaMode,
    Embedding,
    Schedule,
    alpha_gradient,
    coefficients,
    convex_weights,
    elapsed,
)
from medflare.aggregation.temporal import TemporalResidual, slopes_within_bounds
from medflare.core.errors import UpdateError
from medflare.core.tensor_names import SUM_PREFIX, with_prefix
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.run_state import RunState, load_state, save_state
from medflare.learners.fedtar.visit_sums import EXAMPLES, PATIENTS, SLOPES, YEARS, visit_sums_spec, zero_sums
from medflare.recipes.combinations import problems

MODES = get_args(AlphaMode)
LEARNT = tuple(mode for mode in MODES if mode != "constant")


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tuned(mode: AlphaMode, visits: int, seed: int = 0, embedding: Embedding = "visit") -> Schedule:
    """A schedule away from its start, where nothing is equal."""
    result = Schedule(visits, mode, embedding, seed, 0.3)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return result


# ---- coefficients ------------------------------------------------------------------------------------------


def test_vector_3_weights_of_a_rounds_models() -> None:
    beta = convex_weights(double(0.1, 0.2, 0.3, 0.25, 0.15))
    assert beta.tolist() == pytest.approx([0.3213, 0.0357, 0.08925, 0.19125, 0.2125, 0.15], abs=1e-12)


def test_vector_3_coefficients_of_wanted_weights() -> None:
    alpha = coefficients(double(0.2, 0.1, 0.2, 0.2, 0.1, 0.2))
    assert alpha.tolist() == pytest.approx([0.333333, 0.4, 0.285714, 0.125, 0.2], abs=5e-7)


@pytest.mark.parametrize(("visits", "left"), [(2, 0.25), (5, 0.32768), (1, 0.0)])
def test_vector_3_what_is_left_of_the_first_model_at_the_start(visits: int, left: float) -> None:
    alpha = Schedule(visits, "softmax", "visit", 0, 1.0)().detach()
    assert alpha.tolist() == pytest.approx([1 / visits] * visits)
    assert float(convex_weights(alpha)[0]) == pytest.approx(left, abs=1e-12)


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_weights_are_convex_whatever_the_coefficients(values: list[float]) -> None:
    beta = convex_weights(double(*values))
    assert float(beta.sum()) == pytest.approx(1, abs=1e-12)
    assert (beta >= 0).all()


@given(values=st.lists(st.floats(1e-3, 1), min_size=2, max_size=9))
@settings(max_examples=60, deadline=None)
def test_coefficients_give_back_the_weights_they_were_made_from(values: list[float]) -> None:
    beta = double(*values) / sum(values)
    assert torch.allclose(convex_weights(coefficients(beta)), beta, atol=1e-12)


@pytest.mark.parametrize("visits", [1, 3, 7])
def test_every_mode_gives_coefficients_between_0_and_1(visits: int) -> None:
    for mode in MODES:
        alpha = tuned(mode, visits)().detach()
        assert alpha.shape == (visits,)
        assert ((alpha > 0) & (alpha <= 1)).all(), mode
        assert float(convex_weights(alpha).sum()) == pytest.approx(1, abs=1e-12)


def test_softmax_coefficients_sum_to_1_and_beta_softmax_starts_with_equal_weights() -> None:
    assert float(tuned("softmax", 5)().detach().sum()) == pytest.approx(1)
    fresh = Schedule(5, "beta_softmax", "visit", 0, 1.0)()
    assert convex_weights(fresh).tolist() == pytest.approx([1 / 6] * 6)
    assert Schedule(5, "sigmoid", "visit", 0, 1.0)().tolist() == pytest.approx([0.5] * 5)


def test_sigmoid_coefficients_start_where_the_setting_says_and_learn_from_there() -> None:
    rule = TemporalResidual(visits=3, alpha_mode="sigmoid", start=0.9, lr=0.05)
    assert rule.alpha.tolist() == pytest.approx([0.9] * 3)
    moved = Schedule(3, "sigmoid", "visit", 0, 1.0, 0.9)
    moved.last.data.fill_(1.0)
    assert moved().detach().tolist() != pytest.approx([0.9] * 3)
    with pytest.raises(ValueError, match="start is 1"):
        TemporalResidual(visits=3, alpha_mode="sigmoid", start=1.0)


def test_visits_at_the_same_distance_in_time_have_the_same_coefficient() -> None:
    schedule = tuned("sigmoid", 4, embedding="days")
    schedule.years.copy_(double(0, 0.1, 2.0, 0.1, 0, 0.1, 2.1, 0.1).view(2, 4))
    alpha = schedule().detach()
    assert float(alpha[1]) == float(alpha[3])
    assert len({round(float(x), 9) for x in alpha[:3]}) == 3


def test_a_century_between_visits_and_a_day_are_finite_and_different() -> None:
    far = elapsed(double(0, 1 / 365.25, 100.0, 0, 1 / 365.25, 100.0).view(2, 3))
    assert torch.isfinite(far).all()
    assert far.shape == (3, 16)
    assert (far[1] - far[0]).abs().max() > 0.05


# ---- the meta-gradient -------------------------------------------------------------------------------------


def unrolled(schedule: Schedule, start: Tensor, means: Tensor, seen: Tensor) -> tuple[Tensor, list[Tensor]]:
    """w_T by the recursion with means w̄ held fixed, and w_0 .. w_T."""
    alpha, w = schedule(), start
    path = [w]
    for t, mean in enumerate(means):
        w = w + alpha[t] * (mean - w) if seen[t] else w
        path.append(w)
    return w, path


def validation_loss(w: Tensor) -> Tensor:
    return (torch.sin(3 * w) * w.exp()).sum() + (w**4).mean()


@pytest.mark.parametrize("embedding", get_args(Embedding))
@pytest.mark.parametrize("mode", LEARNT)
@pytest.mark.parametrize("missing", [(), (1,), (0, 3)], ids=["every visit", "one missing", "two missing"])
def test_the_closed_form_is_autograds_meta_gradient(
    mode: Any, embedding: Any, missing: tuple[int, ...]
) -> None:
    draw = torch.Generator().manual_seed(7)
    start, means = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((11,), (5, 11)))
    present = torch.tensor([t not in missing for t in range(5)])
    schedule = tuned(mode, 5, 3, embedding)
    schedule.years.copy_(torch.rand(2, 5, generator=draw, dtype=torch.float64))
    end, path = unrolled(schedule, start, means, present)
    slow = torch.autograd.grad(validation_loss(end), list(schedule.parameters()))

    w = end.detach().requires_grad_()
    (g,) = torch.autograd.grad(validation_loss(w), w)
    slopes = torch.stack([g @ (b - a).detach() for a, b in itertools.pairwise(path)])
    fast = torch.autograd.grad(
        schedule(), list(schedule.parameters()), alpha_gradient(schedule().detach(), slopes, present)
    )
    for one, two in zip(fast, slow, strict=True):
        assert float((one - two).abs().max()) < 1e-10
    assert max(float(x.abs().max()) for x in slow) > 1e-4


def test_softmax_passes_the_gradient_on_in_closed_form() -> None:
    u = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    alpha, towards = torch.softmax(u, 0), double(0.3, -1.0, 0.2, 2.0, 0.1)
    alpha.backward(towards)
    a = alpha.detach()
    assert u.grad is not None
    assert torch.allclose(u.grad, a * (towards - (a * towards).sum()), atol=1e-14)


def test_a_tiny_coefficient_is_not_divided_by() -> None:
    gradient = alpha_gradient(double(1e-12, 0.5), double(1e-9, 0.1), torch.tensor([True, True]))
    assert float(gradient[0]) == pytest.approx(0.5 * 1e-9 / 1e-4)


# ---- the rule ----------------------------------------------------------------------------------------------

SHAPES = {"adapter.q.lora_A.weight": (2, 5), "norm.weight": (3,), "scale": ()}


def tensors(seed: int) -> State:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def exchange(rule: Any, state: State, number: int, examples: tuple[int, ...], **sums: Tensor) -> State:
    """One exchange; the sums ride on the first site's update."""
    rule.begin(state)
    for site, n in enumerate(examples):
        site_sums = {**zero_sums(getattr(rule, "visits", 1)), **sums} if site == 0 else {}
        delta = tensors(100 * number + site) if n else {k: torch.zeros(v) for k, v in SHAPES.items()}
        rule.add(f"s{site}", Update(delta=delta, examples=n, sums=site_sums))
    found: State = rule.finish()
    return found


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_with_one_visit_it_is_fedavg_to_the_last_bit(weighting: str) -> None:
    one, other = (
        TemporalResidual(visits=1, weighting=weighting),
        make_rule("fedavg", {"weighting": weighting}),
    )  # type: ignore[arg-type]
    mine = its = tensors(1) | {"steps": torch.tensor(5)}
    for number in range(4):
        for rule in (one, other):
            state = mine if rule is one else its
            rule.begin(state)
            for site, n in enumerate((3, 11, 7)):
                delta = tensors(10 * number + site) | {"steps": torch.tensor(site)}
                slopes = zero_sums(1) | {SLOPES: double(3.0), EXAMPLES: double(2.0)[0]}
                rule.add(f"s{site}", Update(delta=delta, examples=n, sums=slopes))
            mine, its = (rule.finish(), its) if rule is one else (mine, rule.finish())
        assert all(torch.equal(mine[name], its[name]) for name in its)
    assert one.alpha.tolist() == [1.0]


@pytest.mark.parametrize("mode", MODES)
def test_a_round_is_the_convex_combination_that_the_report_says(mode: Any) -> None:
    rule = TemporalResidual(visits=4, alpha_mode=mode, alpha=0.35)
    state = start = {name: value.double() for name, value in tensors(1).items()}
    means = []
    for number in range(4):
        before, n = state, (3, 11, 7)
        state = exchange(rule, state, number, n)
        deltas = [tensors(100 * number + site) for site in range(3)]
        means.append(
            {
                k: before[k] + sum(w * d[k].double() for w, d in zip(n, deltas, strict=True)) / 21
                for k in before
            }
        )
    beta = rule.report()["beta"]
    for name in SHAPES:
        hull = [start[name], *(mean[name] for mean in means)]
        expected = sum(b * x for b, x in zip(beta, hull, strict=True))
        assert torch.allclose(state[name], torch.as_tensor(expected), atol=1e-6), name
    assert sum(beta) == pytest.approx(1)


def test_the_report_says_which_visit_was_closed_and_with_which_coefficient() -> None:
    rule, state = TemporalResidual(visits=4, alpha_mode="beta_softmax"), tensors(1)
    for number in range(6):
        state = exchange(rule, state, number, (3, 4))
        report, visit = rule.report(), number % 4
        assert report["visit"] == visit + 1
        assert report["alpha"] == rule.alpha.tolist()
        assert len(set(report["alpha"])) == 4
        assert report["checks"] == {"alpha": report["alpha"][visit]}


def test_a_site_without_the_visit_takes_no_part() -> None:
    for weighting in ("examples", "uniform"):
        idle, without = (TemporalResidual(visits=2, weighting=weighting) for _ in range(2))  # type: ignore[arg-type]
        result = exchange(idle, tensors(1), 0, (3, 11, 0))
        expected = exchange(without, tensors(1), 0, (3, 11))
        assert all(torch.equal(result[name], expected[name]) for name in expected)


def test_a_visit_that_no_site_has_leaves_the_model_and_its_coefficient_alone() -> None:
    rule, state = TemporalResidual(visits=3, lr=0.1), tensors(1)
    first = exchange(rule, state, 0, (3, 4))
    second = exchange(rule, first, 1, (0, 0))
    assert all(torch.equal(first[name], second[name]) for name in first)
    exchange(rule, second, 2, (3, 4))
    assert rule.stepped.tolist() == [True, False, True]
    assert rule.report()["beta"][2] == 0.0
    slopes = {SLOPES: double(0.3, 5.0, -0.1), EXAMPLES: torch.tensor(1.0, dtype=torch.float64)}
    exchange(rule, tensors(2), 3, (3, 4), **slopes)
    assert rule.report()["alpha_gradient"][1] == 0.0


def test_a_round_without_updates_leaves_the_visit_where_it_was() -> None:
    rule = TemporalResidual(visits=3)
    rule.begin(tensors(1))
    with pytest.raises(ValueError, match="no update"):
        rule.finish()
    assert rule.round_hints().visit.visit == 1


def test_visits_are_asked_for_in_turn() -> None:
    rule, state, asked = TemporalResidual(visits=3), tensors(1), []
    for number in range(7):
        hint = rule.round_hints().visit
        asked.append((hint.round, hint.visit))
        state = exchange(rule, state, number, (3, 4))
    assert asked == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1)]


def test_an_update_of_another_visit_is_refused() -> None:
    rule = TemporalResidual(visits=3)
    rule.begin(tensors(1))
    with pytest.raises(UpdateError, match=r"of visit 2, expected visit 1"):
        rule.add("s", Update(delta=tensors(2), examples=3, metrics={"visit": 2.0}))


def told(*slopes: float, examples: float = 1.0) -> State:
    return {SLOPES: examples * double(*slopes), EXAMPLES: double(examples)[0]}


@pytest.mark.parametrize("mode", LEARNT)
def test_a_visit_that_raises_the_validation_loss_gets_a_smaller_coefficient(mode: Any) -> None:
    rule, state = TemporalResidual(visits=3, alpha_mode=mode, lr=0.02), tensors(1)
    before = rule.alpha.clone()
    for number in range(12):
        state = exchange(rule, state, number, (3, 4), **told(-0.2, 0.5, -0.2))
    assert rule.alpha[1] < before[1]
    assert float(convex_weights(rule.alpha).sum()) == pytest.approx(1)


def test_the_slopes_of_sites_are_weighed_by_their_validation_examples() -> None:
    one, two = (TemporalResidual(visits=2, lr=0.1) for _ in range(2))
    for rule, riding in (
        (one, [told(0.2, -0.4, examples=3), told(0.6, 0.4, examples=1)]),
        (two, [told(0.3, -0.2)]),
    ):
        state = tensors(1)
        for number in range(2):
            state = exchange(rule, state, number, (3, 4))
        rule.begin(state)
        for site, sums in enumerate(riding):
            rule.add(f"s{site}", Update(delta=tensors(site), examples=2, sums=sums))
        rule.finish()
    assert one.report()["slopes"] == pytest.approx([0.3, -0.2])
    assert torch.allclose(one.alpha, two.alpha, atol=1e-12)


def test_a_round_without_slopes_leaves_the_coefficients() -> None:
    rule, state = TemporalResidual(visits=2, lr=0.1), tensors(1)
    for number in range(6):
        state = exchange(rule, state, number, (3, 4))
    assert rule.alpha.tolist() == [0.5, 0.5]
    assert "slopes" not in rule.report()


def test_a_constant_coefficient_learns_nothing_and_asks_for_nothing() -> None:
    rule = TemporalResidual(visits=2, alpha_mode="constant", alpha=0.7)
    assert rule.round_hints().visit.slopes is False
    for number in range(4):
        exchange(rule, tensors(1), number, (3, 4), **told(0.2, 0.5))
    assert rule.alpha.tolist() == [0.7, 0.7]


def test_a_softmax_over_one_visit_asks_for_no_slopes() -> None:
    assert TemporalResidual(visits=1).round_hints().visit.slopes is False
    assert TemporalResidual(visits=1, alpha_mode="sigmoid").round_hints().visit.slopes is True


def test_times_are_means_over_the_patients_of_all_sites() -> None:
    rule = TemporalResidual(visits=2, embedding="days")
    years, patients = double(0, 3.0, 0, 3.0).view(2, 2), double(4.0, 2.0)
    exchange(rule, tensors(1), 0, (3, 4), **{YEARS: years, PATIENTS: patients})
    assert rule.schedule.years.tolist() == [[0, 1.5], [0, 1.5]]
    exchange(rule, tensors(1), 1, (3, 4))
    exchange(rule, tensors(1), 2, (3, 4))
    assert rule.schedule.years.tolist() == [[0, 1.5], [0, 1.5]]


def test_sums_of_the_rule_do_not_travel_down() -> None:
    totals = zero_sums(2) | {"bank.sums": torch.ones(2)}
    assert set(TemporalResidual(visits=2).update_server_state(totals, 3)) == {"bank.sums"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_goes_on_after_a_restart_within_a_round(mode: Any, stop: int, tmp_path: Any) -> None:
    def made() -> TemporalResidual:
        return TemporalResidual(visits=3, alpha_mode=mode, alpha=0.4, lr=0.05, embedding="days")

    riding = told(0.2, -0.5, 0.1) | {YEARS: torch.rand(2, 3).double(), PATIENTS: double(2, 2, 1)}
    rule, state = made(), tensors(1)
    for number in range(stop):
        state = exchange(rule, state, number, (3, 4), **riding)
    save_state(tmp_path, RunState(exchanges_done=stop, shared=state, rule=rule.state_dict()))
    kept, again = load_state(tmp_path), made()
    again.load_state_dict(kept.rule)
    resumed = kept.shared
    for number in range(stop, 8):
        state = exchange(rule, state, number, (3, 4), **riding)
        resumed = exchange(again, resumed, number, (3, 4), **riding)
    assert all(torch.equal(resumed[name], state[name]) for name in state)
    assert again.alpha.tolist() == rule.alpha.tolist()


def test_a_state_of_another_number_of_visits_is_not_taken() -> None:
    with pytest.raises(ValueError, match="of 2 visits; expected 3"):
        TemporalResidual(visits=3).load_state_dict(TemporalResidual(visits=2).state_dict())


def test_slopes_reach_the_rule_through_the_aggregators_checks_and_do_not_travel_down() -> None:
    state = tensors(1)
    spec = {name: (tuple(value.shape), value.dtype) for name, value in state.items()}
    aggregator = ValidatingAggregator("temporal", {"visits": 2, "lr": 0.1})
    aggregator.expect(spec, visit_sums_spec(2), {"s0": 9, "s1": 9})
    for number in range(3):
        aggregator.begin(number, state, ["s0", "s1"])
        for site, slope in (("s0", 0.3), ("s1", -0.1)):
            sums = zero_sums(2) | told(slope, slope, examples=4)
            facts = {"examples": 9, "metrics": {"visit": float(number % 2 + 1)}}
            assert (
                aggregator.accept(site, number, facts, tensors(number) | with_prefix(sums, SUM_PREFIX))
                is None
            )
        state, totals, checks = aggregator.finish()
        assert totals == {}
        assert 0 < checks["alpha"] < 1
    assert aggregator.rule.report()["slopes"] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("method", ["fedmrg", "fed_medlora"])
def test_methods_that_know_no_visits_are_refused_from_two_visits_on(method: str) -> None:
    (text,) = problems("temporal", method, {}, "bfloat16", rule_settings={"visits": 2})
    assert "metric 'visit'" in text
    assert problems("temporal", method, {}, "bfloat16", rule_settings={"visits": 1}) == []


def test_slopes_beyond_what_a_site_may_tell_are_not_used() -> None:
    sums = {SLOPES: double(10.0, -20.0), EXAMPLES: torch.tensor(10.0, dtype=torch.float64)}
    assert slopes_within_bounds(sums)
    assert not slopes_within_bounds(sums | {SLOPES: double(1e12, 0.0)})
    assert not slopes_within_bounds(sums | {EXAMPLES: torch.tensor(-1.0, dtype=torch.float64)})
    rule = TemporalResidual(visits=2, alpha_mode="sigmoid", lr=0.1)
    rule.begin({"w": torch.zeros(2)})
    liar = {SLOPES: double(-1e12, 1e12), EXAMPLES: torch.tensor(1.0, dtype=torch.float64)}
    rule.add("honest", Update(delta={"w": torch.ones(2)}, examples=5, metrics={"visit": 1.0}, sums=sums))
    rule.add("liar", Update(delta={"w": torch.zeros(2)}, examples=0, metrics={"visit": 1.0}, sums=liar))
    rule.finish()
    assert rule.report()["slopes"] == pytest.approx([1.0, -2.0])
