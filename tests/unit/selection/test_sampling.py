# SPDX-License-Identifier: Apache-2.0
"""Draws with replacement: weights that make updates unbiased, age, and sums that hide enough."""

from __future__ import annotations

import json
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import seen

from medflare.core.errors import ConfigError
from medflare.core.timing import Timing
from medflare.selection.baselines import FedCSSelector, ImportanceSelector, UniformSelector
from medflare.selection.inclusion_probability import expected_counts
from medflare.selection.latency import Latencies
from medflare.selection.sampling import MIN_PROBABILITY, Sample, data_shares, sample_sites, with_staleness
from medflare.selection.selectors import DdcsSelector, Selector, SiteStatistics

SHARES = {"a": 0.4, "b": 0.3, "c": 0.15, "d": 0.1, "e": 0.05}
ODDS = {"a": 0.15, "b": 0.1, "c": 0.45, "d": 0.2, "e": 0.1}
DELTAS = dict(zip(SHARES, np.array([(1, 0), (0, 2), (-3, 1), (4, 4), (9, -9)]), strict=True))
FULL = sum(SHARES[site] * delta for site, delta in DELTAS.items())


def update(draw: Sample) -> np.ndarray:
    return sum((weight * DELTAS[site] for site, weight in draw.weights.items()), np.zeros(2))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---- weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2, 3])
def test_updates_are_unbiased(least: int) -> None:
    random, n = rng(), 3000
    samples = np.stack([update(sample_sites(ODDS, SHARES, 4, random, least)) for _ in range(n)])
    error = samples.std(axis=0) / np.sqrt(n)
    assert np.all(np.abs(samples.mean(axis=0) - FULL) <= 4 * error)


def test_weights_as_drawn_make_the_mean_step_that_of_the_odds() -> None:
    """DD-17: a site that is drawn half as often counts half, where unbiased weights make it count twice."""
    random, n = rng(), 3000
    draws = [sample_sites(ODDS, SHARES, 4, random, unbiased=False) for _ in range(n)]
    assert all(sum(draw.weights.values()) == pytest.approx(1) for draw in draws)
    assert all(draw.weights[site] == count / 4 for draw in draws for site, count in draw.counts.items())
    samples = np.stack([update(draw) for draw in draws])
    error = samples.std(axis=0) / np.sqrt(n)
    of_the_odds = sum(ODDS[site] * delta for site, delta in DELTAS.items())
    assert np.all(np.abs(samples.mean(axis=0) - of_the_odds) <= 4 * error)
    assert np.any(np.abs(samples.mean(axis=0) - FULL) > 4 * error)


def test_dividing_by_s_q_would_be_biased_once_thin_draws_are_thrown_away() -> None:
    """The reason for `expected_counts`: a likely site is drawn less often than S q_i then."""
    counts, probability = expected_counts(np.array(list(ODDS.values())), 4, 3)
    assert counts[2] < 0.9 * 4 * ODDS["c"]
    assert 0.5 < probability < 1


@given(seed=st.integers(0, 10**6), n=st.integers(1, 5), draws=st.integers(1, 5), least=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_expected_counts_are_those_of_all_draws(seed: int, n: int, draws: int, least: int) -> None:
    q = rng(seed).dirichlet(np.ones(n))
    counts, probability = np.zeros(n), 0.0
    for sequence in product(range(n), repeat=draws):
        if len(set(sequence)) >= least:
            chance = prod(q[i] for i in sequence)
            probability += chance
            counts += chance * np.bincount(sequence, minlength=n)
    found, total = expected_counts(q, draws, least)
    assert total == pytest.approx(probability, abs=1e-9)
    if probability > 1e-6:
        assert np.allclose(found, counts / probability, rtol=1e-6, atol=1e-9)


def test_every_site_that_was_drawn_trains_once_whatever_its_count() -> None:
    draw = sample_sites({"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.5}, 6, rng())
    assert sum(draw.counts.values()) == 6
    assert draw.sites == sorted(draw.weights) == sorted(draw.counts)
    assert draw.weights["a"] == pytest.approx(draw.counts["a"] * 0.5 / (6 * 0.9))


def test_twenty_sites_and_five_draws_give_four_and_a_half_different_ones() -> None:
    even, random = {f"s{i:02d}": 0.05 for i in range(20)}, rng()
    sizes = [len(sample_sites(even, even, 5, random).counts) for _ in range(2000)]
    assert np.mean(sizes) == pytest.approx(4.52, abs=0.06)
    assert np.mean(np.array(sizes) == 5) == pytest.approx(0.58, abs=0.05)


def test_a_site_alone_is_drawn_with_weight_one() -> None:
    draw = sample_sites({"a": 1.0}, {"a": 1.0}, 5, rng())
    assert draw.weights == {"a": pytest.approx(1.0)}


# ---- hiding among enough sites -----------------------------------------------------------------------------


def test_at_least_three_different_sites_are_drawn_or_it_is_refused() -> None:
    random = rng()
    assert min(len(sample_sites(ODDS, SHARES, 3, random, 3).counts) for _ in range(300)) == 3
    with pytest.raises(ConfigError, match="2 draws from 5 sites give 3 different ones never"):
        sample_sites(ODDS, SHARES, 2, random, 3)
    with pytest.raises(ConfigError, match=r"5 draws from 2 sites give 3 different ones never.*only a, b "):
        sample_sites({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}, 5, random, 3)
    ten = dict.fromkeys("abcdefghij", 0.1)
    with pytest.raises(ConfigError, match=r"10 different ones with probability 0.00036 only, at even odds"):
        sample_sites(ten, ten, 10, random, 10)


SKEWED = {"a": 0.9999, "b": 0.00005, "c": 0.00005, "d": 0.0}


def test_odds_under_which_three_hardly_come_together_are_mixed_as_little_as_is_enough() -> None:
    shares = {"a": 0.97, "b": 0.01, "c": 0.01, "d": 0.01}
    draw = sample_sites(SKEWED, shares, 3, rng(), 3)
    assert len(draw.counts) == 3
    assert draw.probabilities == pytest.approx(
        {s: (1 - draw.mixed) * q + draw.mixed / 4 for s, q in SKEWED.items()}
    )
    assert expected_counts(np.array(list(draw.probabilities.values())), 3, 3)[1] == pytest.approx(
        MIN_PROBABILITY, rel=1e-6
    )
    less = np.array([(1 - 0.99 * draw.mixed) * q + 0.99 * draw.mixed / 4 for q in SKEWED.values()])
    assert expected_counts(less, 3, 3)[1] < MIN_PROBABILITY
    assert sample_sites(ODDS, SHARES, 4, rng(), 3).mixed == 0.0
    assert sample_sites(SKEWED, shares, 3, rng()).mixed == 0.0


def test_updates_under_mixed_odds_are_unbiased() -> None:
    deltas = dict(zip(SKEWED, (1.0, -2.0, 3.0, 5.0), strict=True))
    shares, random = {"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}, rng(5)
    draws = [sample_sites(SKEWED, shares, 5, random, 3) for _ in range(150)]
    result = np.array([sum(w * deltas[s] for s, w in draw.weights.items()) for draw in draws])
    full = sum(shares[s] * deltas[s] for s in shares)
    assert abs(result.mean() - full) <= 4 * result.std() / np.sqrt(len(result))


# ---- age ---------------------------------------------------------------------------------------------------


def test_who_waited_longer_is_drawn_more_often_and_weights_stay_bounded() -> None:
    odds = with_staleness(ODDS, {"e": 8, "d": 2}, 0.2)
    assert sum(odds.values()) == pytest.approx(1)
    assert odds["e"] == pytest.approx(0.8 * 0.1 + 0.2 * 0.8)
    assert all(SHARES[s] / odds[s] <= SHARES[s] / ODDS[s] / 0.8 + 1e-12 for s in ODDS)
    assert with_staleness(ODDS, {}, 0.2) == ODDS
    assert with_staleness(ODDS, {"e": 5}, 0.0) == ODDS


def longest_wait(bonus: float, rounds: int = 600) -> int:
    """Of a slow site with hardly any data, in rounds."""
    shares = {"a": 0.5, "b": 0.3, "c": 0.199, "slow": 0.001}
    known, random, longest = seen(a=1, b=2, c=2, slow=60), rng(3), 0
    selector = DdcsSelector(draws=2, age_bonus=bonus, epsilon=1.0)
    for number in range(rounds):
        draw = selector.choose(number, shares, known, random)
        known.staleness = {s: 0 if s in draw.counts else known.staleness.get(s, 0) + 1 for s in shares}
        longest = max(longest, known.staleness["slow"])
    return longest


def test_no_site_starves_with_an_age_bonus() -> None:
    assert longest_wait(0.0) > 300
    assert longest_wait(0.2) < 80


# ---- selectors ---------------------------------------------------------------------------------------------

SELECTORS = [
    UniformSelector(draws=4),
    ImportanceSelector(draws=4),
    DdcsSelector(draws=4),
    DdcsSelector(draws=4, age_bonus=0.0),
]


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: type(s).__name__)
def test_every_sampler_is_unbiased(selector: Selector) -> None:
    known, random, n = seen(a=1, b=2, c=3, d=4, e=50), rng(1), 1200
    known.norms, known.staleness = {s: float(np.linalg.norm(d)) for s, d in DELTAS.items()}, {"e": 3, "a": 1}
    samples = np.stack([update(selector.choose(0, SHARES, known, random, 3)) for _ in range(n)])
    assert np.all(np.abs(samples.mean(axis=0) - FULL) <= 4 * samples.std(axis=0) / np.sqrt(n))


def test_importance_sampling_has_the_least_variance() -> None:
    known = SiteStatistics(norms={s: float(np.linalg.norm(d)) for s, d in DELTAS.items()})
    spread = {}
    for selector in (
        UniformSelector(draws=4),
        ImportanceSelector(draws=4, floor=0.01),
        DdcsSelector(draws=4),
    ):
        random = rng(2)
        samples = np.stack([update(selector.choose(0, SHARES, known, random)) for _ in range(1500)])
        spread[type(selector).__name__] = samples.var(axis=0).sum()
    assert spread["ImportanceSelector"] < min(spread["UniformSelector"], spread["DdcsSelector"])


def test_ddcs_is_faster_than_uniform_selection() -> None:
    times = dict(a=1.0, b=2.0, c=3.0, d=4.0, e=50.0)
    mean = {}
    for selector in (UniformSelector(draws=3), DdcsSelector(draws=3, age_bonus=0.0)):
        random = rng(4)
        draws = [selector.choose(0, SHARES, seen(**times), random) for _ in range(400)]
        slowest = [max(times[site] for site in draw.counts) for draw in draws]
        mean[type(selector).__name__] = np.mean(slowest)
    assert mean["DdcsSelector"] < 0.5 * mean["UniformSelector"]


def test_ddcs_solves_again_every_p_rounds_and_whenever_other_sites_are_there() -> None:
    selector, known, random = DdcsSelector(period=3), seen(a=1, b=2, c=3, d=4, e=5), rng()
    selector.choose(0, SHARES, known, random)
    first = selector.solution
    known.latencies.observe("a", Timing(500.0, 0.0))
    selector.choose(2, SHARES, known, random)
    assert selector.solution is first
    selector.choose(3, SHARES, known, random)
    assert selector.solution is not first
    assert selector.solution is not None
    assert selector.solution.probabilities["a"] < first.probabilities["a"]  # type: ignore[union-attr]
    selector.choose(4, data_shares({"a": 5, "b": 5}, ["a", "b"]), known, random)
    assert set(selector.solution.probabilities) == {"a", "b"}


def test_while_a_site_was_not_seen_ddcs_plans_with_the_latencies_of_now() -> None:
    selector, known, random = DdcsSelector(period=3), SiteStatistics(), rng()
    planned = []
    for number, site in enumerate("aabcdee"):
        selector.choose(number, SHARES, known, random)
        planned.append(dict(selector.times))
        known.latencies.observe(site, Timing(float(number + 1), 0.0))
    assert planned[0] == dict.fromkeys(SHARES, 1.0)
    assert planned[1] == dict.fromkeys(SHARES, 1.0)
    assert planned[2] == pytest.approx(dict.fromkeys(SHARES, 1.3))
    assert planned[3]["b"] == 3.0
    assert planned[5]["d"] == 5.0
    assert planned[6] == pytest.approx({"a": 1.3, "b": 3.0, "c": 4.0, "d": 5.0, "e": 6.0})
    known.latencies.observe("a", Timing(99.0, 0.0))
    selector.choose(7, SHARES, known, random)
    assert selector.times == planned[6]
    selector.choose(9, SHARES, known, random)
    assert selector.times["a"] > 30


@pytest.mark.parametrize("seen_by_then", ["abcd", "abcde"])
def test_a_plan_goes_on_after_a_restart_as_if_it_had_not_stopped(seen_by_then: str) -> None:
    selector, known = DdcsSelector(period=4), seen(**{site: 1.0 + i for i, site in enumerate(seen_by_then)})
    selector.choose(0, SHARES, known, rng())
    again = DdcsSelector(period=4)
    again.load_state_dict(json.loads(json.dumps(selector.state_dict())))
    known.latencies.observe("a", Timing(50.0, 0.0))
    draws = [one.choose(1, SHARES, known, rng(8)) for one in (selector, again)]
    assert draws[0] == draws[1]
    assert (again.times["a"] > 10) is (seen_by_then == "abcd")


def test_fedcs_takes_who_fits_before_the_deadline_and_weighs_by_data() -> None:
    known = seen(a=30, b=2, c=3, d=4, e=5)
    draw = FedCSSelector(deadline=4.5).choose(0, SHARES, known, rng())
    assert draw.sites == ["b", "c", "d"]
    assert draw.weights["b"] == pytest.approx(0.3 / 0.55)
    with pytest.raises(ConfigError, match="5 sites have data, and 6 must train"):
        FedCSSelector(deadline=2).choose(0, SHARES, known, rng(), 6)


@pytest.mark.parametrize(
    ("deadline", "least", "expected", "message"),
    [
        (
            1,
            1,
            ["b"],
            "0 of 5 sites fit into the deadline of 1 s, and 1 must: the fastest train all the same (b).",
        ),
        (
            2,
            3,
            ["b", "c", "d"],
            "1 of 5 sites fit into the deadline of 2 s, and 3 must: the fastest train all the same (b, c",
        ),
        (4, 3, ["b", "c", "d"], ""),
    ],
)
def test_fedcs_takes_the_fastest_where_too_few_fit_and_says_so(
    deadline: float, least: int, expected: list[str], message: str
) -> None:
    selector, known = FedCSSelector(deadline=deadline), seen(a=30, b=2, c=3, d=4, e=5)
    draw = selector.choose(0, SHARES, known, rng(), least)
    assert draw.sites == expected
    assert sum(draw.weights.values()) == pytest.approx(1.0)
    assert selector.over.startswith(message)
    assert bool(selector.over) is bool(message)


def test_fedcs_with_one_line_names_the_seconds_that_the_queue_takes() -> None:
    known = SiteStatistics(latencies=Latencies())
    for site, timing in {"a": (1, 2), "b": (2, 2)}.items():
        known.latencies.observe(site, Timing(*timing))
    selector = FedCSSelector(deadline=4, sequential=True)
    selector.choose(0, {"a": 0.5, "b": 0.5}, known, rng(), 2)
    assert selector.over.endswith("Set deadline to 5 s or more.")


def test_fedcs_with_one_line_for_all_adds_transfers_up() -> None:
    known = SiteStatistics(latencies=Latencies())
    for site, timing in {"a": (1, 2), "b": (2, 2), "c": (6, 1)}.items():
        known.latencies.observe(site, Timing(*timing))
    shares = dict.fromkeys("abc", 1 / 3)
    assert FedCSSelector(deadline=6, sequential=True).choose(0, shares, known, rng()).sites == ["a", "b"]
    assert FedCSSelector(deadline=7, sequential=True).choose(0, shares, known, rng()).sites == ["a", "b", "c"]
    assert FedCSSelector(deadline=4, sequential=False).choose(0, shares, known, rng()).sites == ["a", "b"]


def test_sites_without_data_are_never_drawn() -> None:
    shares = data_shares({"a": 30, "b": 0, "c": 10}, ["a", "b", "c"])
    assert shares == {"a": 0.75, "c": 0.25}
    known = seen(a=9, b=0.1, c=8)
    assert all("b" not in DdcsSelector().choose(n, shares, known, rng(n)).counts for n in range(30))
