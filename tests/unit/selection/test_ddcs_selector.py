# SPDX-License-Identifier: Apache-2.0
"""The selector of DDCS: which problem it solves, when it solves it again, and whose distances it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import seen

from medflare.core.errors import ConfigError
from medflare.core.timing import Timing
from medflare.selection import selectors
from medflare.selection.selectors import DdcsSelector, SiteStatistics, require_sites

SHARES = {"b": 0.3, "a": 0.5, "c": 0.2}
SECONDS = {"a": 3.0, "b": 1.0, "c": 2.0}


def far_apart() -> SiteStatistics:
    """Return three sites of which each pair is half apart."""
    known = seen(**SECONDS)
    known.sizes = dict.fromkeys(SHARES, 3)
    known.shared = {("a", "b"): 2, ("a", "c"): 2, ("b", "c"): 2}
    return known


def test_the_problem_has_every_setting_and_observation_in_the_order_of_names() -> None:
    given: dict[str, Any] = dict(
        draws=7, floor=0.3, epsilon=0.4, most_variance=1.5, variance_rounds=0.25, pairs_of="sites"
    )
    problem = DdcsSelector(**given).problem(SHARES, far_apart())
    assert {name: getattr(problem, name) for name in given} == given
    assert problem.sites == ("a", "b", "c")
    assert problem.latencies.tolist() == [3.0, 1.0, 2.0]
    assert problem.shares.tolist() == [0.5, 0.3, 0.2]
    assert problem.distances is not None
    assert problem.distances == pytest.approx(0.5 * (1 - np.eye(3)))
    planned = DdcsSelector().problem(SHARES, far_apart(), {"a": 5.0, "b": 6.0, "c": 7.0})
    assert planned.latencies.tolist() == [5.0, 6.0, 7.0]


def test_an_epsilon_that_nobody_can_keep_is_an_error_where_the_job_says_so() -> None:
    relaxed, strict = (DdcsSelector(epsilon=0.0, on_infeasible=how) for how in ("relax", "error"))
    assert set(relaxed.probabilities(0, SHARES, far_apart())) == set(SHARES)
    assert relaxed.solution is not None
    assert not relaxed.solution.feasible
    with pytest.raises(ConfigError, match="epsilon"):
        strict.probabilities(0, SHARES, far_apart())


def test_who_has_waited_longer_is_drawn_more_often_by_the_bonus() -> None:
    known = seen(**SECONDS)
    known.staleness = {"a": 0, "b": 0, "c": 4}
    plain = DdcsSelector(age_bonus=0.0).probabilities(0, SHARES, known)
    older = DdcsSelector(age_bonus=0.2).probabilities(0, SHARES, known)
    assert older["c"] == pytest.approx(0.8 * plain["c"] + 0.2)
    assert older["b"] == pytest.approx(0.8 * plain["b"])


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Site -> seconds of each problem that was solved."""
    found: list[dict[str, float]] = []
    solve = selectors.solve

    def counted(problem: Any, on_infeasible: Any) -> Any:
        found.append(dict(zip(problem.sites, problem.latencies.tolist(), strict=True)))
        return solve(problem, on_infeasible)

    monkeypatch.setattr(selectors, "solve", counted)
    return found


def test_it_solves_once_a_period_and_again_where_anything_but_latencies_changed(
    solved: list[dict[str, float]],
) -> None:
    selector, known = DdcsSelector(period=3), seen(**SECONDS)
    for number in range(3):
        selector.probabilities(number, SHARES, known)
        known.latencies.observe("a", Timing(60.0, 0.0))
    assert solved == [SECONDS]
    known.sizes, known.shared = far_apart().sizes, far_apart().shared
    selector.probabilities(2, SHARES, known)
    assert solved[1:] == [SECONDS], "distances are new, and the period's latencies stay"
    selector.probabilities(3, SHARES, known)
    assert len(solved) == 3
    assert solved[2]["a"] > 10


def test_a_site_that_did_not_answer_ends_the_plan(solved: list[dict[str, float]]) -> None:
    selector, known = DdcsSelector(period=3), seen(**SECONDS)
    selector.probabilities(0, SHARES, known)
    known.latencies.report_timeout("a", 60.0)
    selector.probabilities(1, SHARES, known)
    assert len(solved) == 1, "the latency alone does not"
    selector.report_timeout()
    selector.probabilities(1, SHARES, known)
    assert solved[1]["a"] > 10
    known.latencies.observe("a", Timing(600.0, 0.0))
    selector.probabilities(2, SHARES, known)
    assert len(solved) == 2, "the new plan holds for the rest of its period"


@pytest.mark.parametrize(
    ("sizes", "exact"),
    [({"a": 0, "b": 4}, True), ({"a": 4, "b": 4}, False), ({"a": 0}, False), ({"a": 1, "b": 4}, False)],
)
def test_exact_sizes_are_distances_where_pairs_were_compared_or_one_graph_is_empty(
    sizes: dict[str, int], exact: bool
) -> None:
    found = SiteStatistics(sizes=sizes).distances(["a", "b"])
    assert (found is not None) is exact


def test_as_many_sites_as_must_train_are_enough() -> None:
    require_sites(SHARES, 3)
    with pytest.raises(ConfigError, match="3 sites have data, and 4 must train"):
        require_sites(SHARES, 4)
    alone = DdcsSelector().choose(0, {"a": 1.0}, seen(a=1.0), np.random.default_rng(0))
    assert list(alone.counts) == ["a"], "one site is enough unless more are asked for"
