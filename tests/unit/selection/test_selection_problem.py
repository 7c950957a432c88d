# SPDX-License-Identifier: Apache-2.0
"""DDCS's functions and what the optimiser makes of them: test vector 6, 6.3 and its degenerate cases."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import brute, random_problem

from medflare.core.errors import ConfigError
from medflare.selection.objective import (
    divergence,
    divergence_gradient,
    expected_slowest,
    expected_slowest_gradient,
    pairs,
    slowest_of_each,
    variance,
    variance_gradient,
)
from medflare.selection.optimiser import GAIN, extreme_points, solve
from medflare.selection.problem import Problem
from medflare.selection.smooth import objective_gradient

T3, Q3 = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.3, 0.2])
D3 = np.array([[0, 0.5, 0.8], [0.5, 0, 0.6], [0.8, 0.6, 0]])


# ---- functions ---------------------------------------------------------------------------------------------


def test_vector_6_of_the_specification() -> None:
    assert expected_slowest(Q3, T3, 2) == pytest.approx(2.47)
    assert divergence(Q3, D3) == pytest.approx(0.382)
    assert pairs(2) * divergence(Q3, D3) == pytest.approx(0.764)
    first = np.array([1.0, 0, 0])
    assert (divergence(first, D3), expected_slowest(first, T3, 2)) == (0.0, 1.0)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), draws=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_expected_slowest_is_the_mean_over_all_draws(seed: int, n: int, draws: int) -> None:
    assume(n**draws <= 1300)
    rng = np.random.default_rng(seed)
    q, t = rng.dirichlet(np.ones(n)), rng.integers(1, 5, n).astype(float)
    slow = sum(np.prod(q[list(c)]) * t[list(c)].max() for c in product(range(n), repeat=draws))
    assert expected_slowest(q, t, draws) == pytest.approx(slow)
    assert slowest_of_each(q[None], t, draws)[0] == pytest.approx(slow)


def test_the_divergence_is_the_mean_distance_of_two_draws() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.choice(3, (200_000, 2), p=Q3)
    assert D3[drawn[:, 0], drawn[:, 1]].mean() == pytest.approx(divergence(Q3, D3), abs=4e-3)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), draws=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_gradients_are_those_of_autograd(seed: int, n: int, draws: int) -> None:
    rng = np.random.default_rng(seed)
    q0, t, d = rng.uniform(0.05, 1, n), rng.integers(1, 6, n).astype(float), rng.dirichlet(np.ones(n))
    problem = random_problem(seed, n)
    q = torch.tensor(q0, requires_grad=True)
    order = np.argsort(t, kind="stable")
    cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(q[order], 0)]) ** draws
    slowest = ((cumulative[1:] - cumulative[:-1]) * torch.tensor(t[order])).sum()
    D = torch.tensor(problem.metric)
    for value, gradient in (
        (slowest, expected_slowest_gradient(q0, t, draws)),
        (q @ D @ q, divergence_gradient(q0, problem.metric)),
        ((torch.tensor(d) ** 2 / q).sum(), variance_gradient(q0, d)),
    ):
        expected = torch.autograd.grad(value, q)[0].numpy()
        assert np.allclose(gradient, expected, rtol=1e-9, atol=1e-12)


def test_the_gradient_that_counts_rounds_is_that_of_finite_differences() -> None:
    problem = random_problem(3, 5, variance_rounds=0.7)
    q, step = np.array([0.1, 0.15, 0.2, 0.25, 0.3]), 1e-6
    for i, moved in enumerate(np.eye(5) * step):
        slope = (problem.objective(q + moved) - problem.objective(q - moved)) / (2 * step)
        assert objective_gradient(problem, q)[i] == pytest.approx(slope, rel=1e-6)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 8), draws=st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_time_and_divergence_are_concave_which_is_why_the_printed_problem_is_degenerate(
    seed: int, n: int, draws: int
) -> None:
    problem, rng = random_problem(seed, n, draws=draws), np.random.default_rng(seed)
    one, other, mix = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n)), rng.random()
    between = mix * one + (1 - mix) * other
    for value in (
        lambda q: expected_slowest(q, problem.latencies, draws),
        lambda q: divergence(q, problem.metric),
    ):
        assert value(between) >= mix * value(one) + (1 - mix) * value(other) - 1e-9
    fastest = np.eye(n)[problem.latencies.argmin()]
    assert divergence(fastest, problem.metric) == 0
    assert expected_slowest(fastest, problem.latencies, draws) <= expected_slowest(
        one, problem.latencies, draws
    )


def test_the_variance_is_least_for_the_data_shares() -> None:
    d = np.array([0.5, 0.3, 0.2])
    assert variance(d, d) == pytest.approx(1.0)
    assert variance(np.array([0.4, 0.4, 0.2]), d) > 1
    assert variance(np.array([0.6, 0.4, 0.0]), d) == np.inf
    assert variance(np.array([0.6, 0.4, 0.0]), np.array([0.5, 0.5, 0.0])) < np.inf


# ---- the optimiser -----------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 4),
    floor=st.sampled_from([0.05, 0.2, 0.6]),
    tightness=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_no_point_of_a_fine_grid_is_better(seed: int, n: int, floor: float, tightness: float) -> None:
    problem = random_problem(seed, n, floor=floor)
    corners = extreme_points(problem)
    least = min(divergence(q, problem.metric) for q in corners)
    limit = least + tightness * (divergence(problem.shares, problem.metric) - least)
    assume(0 <= limit <= 1)
    problem = random_problem(seed, n, floor=floor, epsilon=limit)
    solution = solve(problem)
    assert solution.feasible
    assert solution.proven
    assert problem.feasible(solution.q)
    assert solution.expected_slowest <= brute(problem, {2: 400, 3: 40, 4: 15}[n]) * (1 + GAIN)


@given(seed=st.integers(0, 10**6), cap=st.sampled_from([1.0, 1.1, 1.5, 3.0]), rho=st.sampled_from([0.0, 0.5]))
@settings(max_examples=8, deadline=None)
def test_with_a_variance_cap_no_point_of_a_grid_is_better_either(seed: int, cap: float, rho: float) -> None:
    problem = random_problem(seed, 3, most_variance=cap, variance_rounds=rho)
    solution = solve(problem)
    assert problem.feasible(solution.q)
    assert solution.variance <= cap * (1 + 1e-8)
    assert problem.objective(solution.q) <= brute(problem, 30) * (1 + GAIN)


@pytest.mark.parametrize(
    ("n", "seed", "cap", "rho", "epsilon"),
    [
        (4, 170181580, 2.0, 0.0, 0.3376),
        (3, 224910096, 1.2, 0.0, 0.26667),
        (4, 365727382, 2.0, 0.0, 0.2773),
        (4, 269158783, 5.0, 1.0, 0.3974),
    ],
)
def test_several_valleys_between_cap_and_epsilon(
    n: int, seed: int, cap: float, rho: float, epsilon: float
) -> None:
    """Found by comparing many random problems with grids; starts from feasible corners alone missed these."""
    problem = random_problem(seed, n, most_variance=cap, variance_rounds=rho, epsilon=epsilon)
    assert problem.objective(solve(problem).q) <= brute(problem, {3: 36, 4: 14}[n]) * (1 + GAIN)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), draws=st.integers(1, 8), floor=st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_it_is_never_worse_than_the_data_shares(seed: int, n: int, draws: int, floor: float) -> None:
    problem = random_problem(seed, n, draws=draws, floor=floor)
    solution = solve(problem)
    assert solution.feasible
    assert solution.expected_slowest <= expected_slowest(problem.shares, problem.latencies, draws) * (
        1 + 1e-9
    )
    assert solution.divergence <= divergence(problem.shares, problem.metric) + 1e-8
    assert np.sum(solution.q) == pytest.approx(1)
    assert np.all(problem.shares / (draws * solution.q) <= 1 / (draws * floor) * (1 + 1e-6))


def test_the_floor_keeps_slow_sites_and_makes_rounds_faster() -> None:
    solution = solve(random_problem(11, 12, draws=5, epsilon=1.0))
    problem = random_problem(11, 12, draws=5)
    assert solution.found_as == "extreme point"
    assert solution.q.argmax() == problem.latencies.argmin()
    assert np.all(solution.q >= 0.2 * problem.shares - 1e-12)
    assert solution.expected_slowest < 0.8 * expected_slowest(problem.shares, problem.latencies, 5)


# ---- bad input ---------------------------------------------------------------------------------------------


def test_an_epsilon_below_the_attainable_relaxes_or_says_the_smallest_one() -> None:
    problem = random_problem(2, 5, epsilon=0.01)
    corners = extreme_points(problem)
    least = min(divergence(q, problem.metric) for q in corners)
    solution = solve(problem)
    assert not solution.feasible
    assert solution.smallest_epsilon == solution.divergence == pytest.approx(least)
    with pytest.raises(ConfigError, match=f"differ by {least:.6g} on average at least") as caught:
        solve(problem, "error")
    advised = float(str(caught.value).split("Set epsilon to ")[1].split()[0])
    assert solve(random_problem(2, 5, epsilon=advised), "error").feasible


def test_one_site_is_drawn_always() -> None:
    problem = Problem(sites=("a",), latencies=np.array([3.0]), shares=np.ones(1), distances=np.zeros((1, 1)))
    solution = solve(problem)
    assert solution.probabilities == {"a": pytest.approx(1.0)}
    assert (solution.expected_slowest, solution.divergence, solution.variance) == pytest.approx(
        (3.0, 0.0, 1.0)
    )


def test_equally_fast_sites_are_drawn_by_their_data() -> None:
    problem = random_problem(4, 6, latencies=np.full(6, 7.0))
    solution = solve(problem)
    assert np.allclose(solution.q, problem.shares)
    assert solution.expected_slowest == pytest.approx(7.0)


def test_next_to_nothing_of_a_second_is_worth_no_variance() -> None:
    """Equal machines never take the same time to the last digit."""
    jitter = 10.0 + 1e-3 * np.random.default_rng(0).random(4)
    problem = random_problem(3, 4, latencies=jitter)
    assert np.array_equal(solve(problem).q, problem.shares)
    faster = solve(random_problem(3, 4, latencies=np.array([8.0, 10, 10, 10])))
    assert faster.variance > 1.5


@pytest.mark.parametrize(
    ("size", "group", "cap", "pairs_of", "attainable"),
    [
        (20, 2, None, "sites", 0.5083),
        (40, 2, None, "sites", 0.5251),
        (20, 4, 3.0, "draws", 0.3981),
        (20, 3, 2.0, "sites", 0.6757),
    ],
)
def test_a_few_alike_sites_far_from_the_rest_are_found(
    size: int, group: int, cap: float | None, pairs_of: str, attainable: float
) -> None:
    """Alone each of them lies furthest from all others; together they are the least divergent choice."""
    D = np.full((size, size), 0.8)
    D[:group, :] = D[:, :group] = 1.0
    D[:group, :group] = 0.05
    np.fill_diagonal(D, 0.0)
    given_ = dict(distances=D, shares=np.full(size, 1 / size), most_variance=cap, pairs_of=pairs_of)
    solution = solve(random_problem(0, size, **given_))
    assert solution.smallest_epsilon <= attainable
    between = attainable + 0.01
    assert solve(random_problem(0, size, epsilon=between, **given_), "error").feasible


def test_without_sketches_only_time_counts() -> None:
    problem = random_problem(4, 6, distances=None)
    solution = solve(problem)
    assert solution.q.argmax() == problem.latencies.argmin()
    assert solution.divergence == 0.0


def test_a_site_with_an_empty_graph_keeps_its_floor() -> None:
    D = random_problem(9, 5).metric.copy()
    D[2, :] = D[:, 2] = 1.0
    D[2, 2] = 0.0
    problem = random_problem(9, 5, distances=D)
    solution = solve(problem)
    assert solution.feasible
    assert solution.q[2] >= 0.2 * problem.shares[2] - 1e-12


def test_distances_that_are_no_jaccard_matrix_are_searched_and_not_called_proven() -> None:
    D = np.array([[0, 1.0, 0.1, 0.1], [1.0, 0, 0.1, 0.1], [0.1, 0.1, 0, 0.1], [0.1, 0.1, 0.1, 0]])
    problem = random_problem(1, 4, distances=D)
    solution = solve(problem)
    assert not solution.proven
    assert problem.objective(solution.q) <= brute(problem, 15) * (1 + GAIN)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(draws=0), "draws is 0"),
        (dict(floor=0.0), "floor is 0.0"),
        (dict(epsilon=1.5), "epsilon is 1.5"),
        (dict(pairs_of="hospitals"), "pairs_of is 'hospitals'"),
        (dict(most_variance=0.5), "most_variance is 0.5"),
        (dict(variance_rounds=-1.0), "variance_rounds is -1.0"),
        (dict(latencies=np.array([1.0, 0.0, 2.0])), "latency is not a positive number"),
        (dict(latencies=np.ones(4)), "4 latencies and 3 data shares for 3 sites"),
        (dict(shares=np.array([1.0, 0.0, 0.0])), "data shares are not positive"),
        (dict(shares=np.array([0.5, 0.5, 0.5])), "data shares are not positive with sum 1"),
        (dict(distances=np.ones((3, 3))), "distances are not symmetric"),
        (dict(distances=np.zeros((2, 2))), "distances have shape"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        random_problem(0, 3, **wrong)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^client selection: draws is 0.*; floor is 2.*at most 1\.$"):
        random_problem(0, 3, draws=0, floor=2)


def test_there_is_nobody_to_choose_without_data() -> None:
    with pytest.raises(ConfigError, match="no site has training examples"):
        Problem(sites=(), latencies=np.zeros(0), shares=np.zeros(0))
