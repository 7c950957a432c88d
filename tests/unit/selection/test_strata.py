# SPDX-License-Identifier: Apache-2.0
"""Knowledge-stratified sampling: the urns of DD-15, no bias, and less variance than independent draws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.update import Update
from medflare.selection.latency import Timing
from medflare.selection.selectors import SiteStatistics
from medflare.selection.strata import StratifiedSelector, clusters_of, fill_urns

SHARES = {"1": 0.4, "2": 0.3, "3": 0.2, "4": 0.1}
ALIKE = [["1", "3"], ["2", "4"]]


def test_the_urns_of_the_specification() -> None:
    """d = (.4, .3, .2, .1), S = 2: cluster {1, 3} has mass 1.2 and fills urn 1 and a fifth of urn 2."""
    first, second = fill_urns(SHARES, ALIKE[::-1], 2)
    assert first == pytest.approx({"1": 0.8, "3": 0.2})
    assert second == pytest.approx({"3": 0.2, "2": 0.6, "4": 0.2})


def test_the_heavier_cluster_is_poured_first_whatever_its_sites_are_called() -> None:
    """Cluster {3, 4} has mass 1.2, {1, 2} 0.8: it fills urn 1 and a fifth of urn 2."""
    shares = {"1": 0.3, "2": 0.1, "3": 0.4, "4": 0.2}
    first, second = fill_urns(shares, [["1", "2"], ["3", "4"]], 2)
    assert first == pytest.approx({"3": 0.8, "4": 0.2})
    assert second == pytest.approx({"4": 0.2, "1": 0.6, "2": 0.2})


@pytest.mark.parametrize("draws", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_every_site_has_its_share_of_all_urns_and_no_urn_more_than_is_drawn(draws: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sites = [f"s{number}" for number in range(9)]
    shares = dict(zip(sites, rng.dirichlet(np.full(9, 0.5)), strict=True))
    clusters = [sites[:4], sites[4:6], sites[6:]]
    urns = fill_urns(shares, clusters, draws)
    assert len(urns) == draws
    assert [sum(urn.values()) for urn in urns] == pytest.approx([1.0] * draws)
    odds = {site: sum(urn.get(site, 0.0) for urn in urns) / draws for site in sites}
    assert odds == pytest.approx(shares, abs=1e-9)


def variance(urns: list[dict[str, float]], updates: dict[str, np.ndarray]) -> float:
    """Of the step (1/S) Σ Δ over one draw from each urn, summed over coordinates."""
    total = 0.0
    for urn in urns:
        mean = sum(p * updates[site] for site, p in urn.items())
        total += sum(p * float(((updates[site] - mean) ** 2).sum()) for site, p in urn.items())
    return total / len(urns) ** 2


@pytest.mark.parametrize("seed", range(6))
def test_the_variance_is_never_above_that_of_independent_draws_and_half_of_it_where_clusters_agree(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    sites = [f"s{number}" for number in range(8)]
    shares = dict(zip(sites, rng.dirichlet(np.full(8, 2.0)), strict=True))
    clusters = [sites[:4], sites[4:]]
    centres = rng.normal(0, 1, (2, 5))
    updates = {s: centres[k] + rng.normal(0, 0.1, 5) for k, own in enumerate(clusters) for s in own}
    independent = variance([shares] * 4, updates)
    assert variance(fill_urns(shares, clusters, 4), updates) < 0.5 * independent
    for mixed in itertools.islice(itertools.permutations(sites), 0, 2000, 400):
        assert variance(fill_urns(shares, [list(mixed)], 4), updates) <= independent + 1e-12


def test_the_mean_step_over_many_rounds_is_that_of_all_sites() -> None:
    rule = make_rule("stratified_sampling", {"draws": 2})
    examples = {site: int(100 * share) for site, share in SHARES.items()}
    deltas = {site: float(number) for number, site in enumerate(SHARES, 1)}
    steps = []
    for number in range(1500):
        sites = rule.sample_clients(number, 7, examples, list(examples))
        rule.begin({"w": torch.zeros(1, dtype=torch.float64)})
        for site in sites:
            delta = {"w": torch.tensor([deltas[site]], dtype=torch.float64)}
            rule.add(site, Update(delta=delta, examples=examples[site]))
        steps.append(float(rule.finish()["w"]))
    full = sum(SHARES[site] * deltas[site] for site in SHARES)
    assert abs(np.mean(steps) - full) <= 4 * np.std(steps) / len(steps) ** 0.5


DISTANCES = np.array([[0, 0.9, 0.2, 0.9], [0.9, 0, 0.9, 0.3], [0.2, 0.9, 0, 0.9], [0.9, 0.3, 0.9, 0]])


def test_sites_with_like_knowledge_are_a_cluster_and_without_distances_all_are_one() -> None:
    assert clusters_of(list(SHARES), DISTANCES, 2) == ALIKE
    assert clusters_of(list(SHARES), None, 2) == [list(SHARES)]
    assert clusters_of(["1"], None, 3) == [["1"]]


class Known(SiteStatistics):
    """Statistics with these distances."""

    def distances(self, sites: object) -> np.ndarray:
        return DISTANCES


def test_latency_orders_the_sites_of_a_cluster_and_leaves_the_odds_alone() -> None:
    known = Known()
    known.latencies.observe("1", Timing(9.0, 0.0))
    known.latencies.observe("3", Timing(1.0, 0.0))
    selector = StratifiedSelector(draws=2)
    sample = selector.choose(0, SHARES, known, np.random.default_rng(0))
    assert selector.strata is not None
    assert ["3", "1"] in selector.strata
    assert sample.probabilities == SHARES
    assert sum(sample.weights.values()) == pytest.approx(1.0)


def test_under_a_protection_it_is_refused() -> None:
    rule = make_rule("stratified_sampling", {})
    with pytest.raises(ConfigError, match="cannot promise 3 different sites"):
        rule.sample_clients(0, 0, {"a": 5, "b": 5, "c": 5}, ["a", "b", "c"], 3)


def test_clusters_are_of_average_linkage_and_two_sites_can_be_two() -> None:
    """Sites at 0, 1, 2.1 and 3.4: single linkage would chain the first three."""
    places = np.array([0.0, 1.0, 2.1, 3.4])
    distances = np.abs(places[:, None] - places[None])
    assert sorted(map(sorted, clusters_of(["a", "b", "c", "d"], distances, 2))) == [["a", "b"], ["c", "d"]]
    assert sorted(clusters_of(["a", "b"], distances[:2, :2], 2)) == [["a"], ["b"]]
    assert clusters_of(["a"], distances[:1, :1], 2) == [["a"]]
    estimated = distances + 0.1 * np.eye(4)  # a sketch's distance of a site from itself
    assert clusters_of(list("abcd"), estimated, 2) == clusters_of(list("abcd"), distances, 2)


def test_two_different_sites_cannot_be_promised() -> None:
    selector, shares = StratifiedSelector(draws=2), {"a": 0.5, "b": 0.5}
    with pytest.raises(ConfigError, match="cannot promise 2 different sites"):
        selector.choose(0, shares, SiteStatistics(), np.random.default_rng(0), min_clients=2)
