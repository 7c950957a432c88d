# SPDX-License-Identifier: Apache-2.0
"""ε on pairs of different sites (6.3, "divergence over distinct clients"), which repeats cannot keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import brute, grid, random_problem

from medflare.core.errors import ConfigError
from medflare.selection.objective import distance_between, distance_between_gradient, divergence
from medflare.selection.optimiser import GAIN, extreme_points, solve
from medflare.selection.problem import Problem

TWO_KINDS = np.array([[0, 0.1, 0.9, 0.9], [0.1, 0, 0.9, 0.9], [0.9, 0.9, 0, 0.1], [0.9, 0.9, 0.1, 0]])


def test_it_is_the_mean_distance_of_two_draws_of_different_sites() -> None:
    rng, q = np.random.default_rng(1), np.array([0.5, 0.3, 0.1, 0.1])
    one, other = rng.choice(4, (2, 200_000), p=q)
    different = one != other
    expected = TWO_KINDS[one[different], other[different]].mean()
    assert distance_between(q, TWO_KINDS) == pytest.approx(expected, abs=4e-3)


def test_repeats_make_the_mean_over_draws_small_and_leave_this_one() -> None:
    far = np.ones((4, 4)) - np.eye(4)
    spread, repeated = np.full(4, 0.25), np.array([0.85, 0.05, 0.05, 0.05])
    assert divergence(repeated, far) < 0.4 * divergence(spread, far)
    assert distance_between(repeated, far) == pytest.approx(distance_between(spread, far)) == 1.0


@given(seed=st.integers(0, 10**6), n=st.integers(2, 7))
@settings(max_examples=40, deadline=None)
def test_its_gradient_is_that_of_autograd(seed: int, n: int) -> None:
    q0 = np.random.default_rng(seed).dirichlet(np.ones(n))
    assume(1 - q0 @ q0 > 1e-3)
    D = random_problem(seed, n).distances
    q = torch.tensor(q0, requires_grad=True)
    value = q @ torch.tensor(D) @ q / (1 - q @ q)
    expected = torch.autograd.grad(value, q)[0].numpy()
    assert np.allclose(distance_between_gradient(q0, D), expected, rtol=1e-8, atol=1e-10)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 5), epsilon=st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_the_quadratic_form_is_within_epsilon_where_the_mean_is(seed: int, n: int, epsilon: float) -> None:
    problem = random_problem(seed, n, pairs_of="sites", epsilon=epsilon)
    for q in np.random.default_rng(seed).dirichlet(np.ones(n), 20):
        assume(abs(problem.divergence(q) - epsilon) > 1e-6)
        assert (divergence(q, problem.metric) <= epsilon) == (problem.divergence(q) <= epsilon)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 4),
    tightness=st.sampled_from([0.2, 0.6, 1.0]),
    cap=st.sampled_from([None, 1.5, 3.0]),
)
@settings(max_examples=12, deadline=None)
def test_no_point_of_a_grid_is_better(seed: int, n: int, tightness: float, cap: float | None) -> None:
    parts = {2: 200, 3: 30, 4: 14}[n]
    free = random_problem(seed, n, pairs_of="sites", most_variance=cap)
    smallest = solve(free).smallest_epsilon
    points = free.floor * free.shares + (1 - free.floor) * grid(n, parts)
    assert smallest <= min(free.divergence(q) for q in points if free.in_region(q)) + 1e-6
    limit = smallest + 1e-6 + tightness * (free.divergence(free.shares) - smallest)
    problem = random_problem(seed, n, pairs_of="sites", most_variance=cap, epsilon=limit)
    solution = solve(problem)
    assert solution.feasible
    assert problem.feasible(solution.q)
    assert solution.divergence == pytest.approx(problem.divergence(solution.q))
    assert solution.expected_slowest <= brute(problem, parts) * (1 + GAIN)


def test_sites_of_one_kind_are_drawn_together_only_where_pairs_are_of_sites() -> None:
    """Four hospitals, two of each kind; one of the slow pair is like the fastest one in nothing."""
    given_ = dict(
        sites=("a", "b", "c", "d"),
        latencies=np.array([1.0, 10.0, 2.0, 9.0]),
        shares=np.full(4, 0.25),
        distances=TWO_KINDS,
        draws=3,
        floor=0.1,
        most_variance=1.6,
    )
    draws, sites = Problem(**given_), Problem(**given_, pairs_of="sites")
    limits = [0.9 * problem.divergence(problem.shares) for problem in (draws, sites)]
    of_draws = solve(Problem(**given_, epsilon=limits[0])).q
    of_sites = solve(Problem(**given_, epsilon=limits[1], pairs_of="sites")).q
    assert of_draws[0] + of_draws[2] > 0.7, "the two fastest, unlike as they are"
    assert abs(of_sites[:2].sum() - 0.5) > abs(of_draws[:2].sum() - 0.5) + 0.1, "one kind, rather than both"


def test_with_one_site_it_is_nothing_and_that_site_trains() -> None:
    alone = Problem(
        sites=("a",), latencies=np.ones(1), shares=np.ones(1), distances=np.zeros((1, 1)), pairs_of="sites"
    )
    solution = solve(alone)
    assert (solution.q.tolist(), solution.divergence, solution.feasible) == ([1.0], 0.0, True)


def test_an_epsilon_below_the_attainable_names_the_smallest() -> None:
    problem = random_problem(5, 4, pairs_of="sites", epsilon=0.0)
    solution = solve(problem)
    assert not solution.feasible
    assert solution.divergence == pytest.approx(solution.smallest_epsilon)
    assert all(solution.divergence <= problem.divergence(q) + 1e-9 for q in extreme_points(problem))
    with pytest.raises(ConfigError, match=rf"differ by {solution.smallest_epsilon:.6g}"):
        solve(problem, "error")
