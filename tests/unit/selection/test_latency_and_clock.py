# SPDX-License-Identifier: Apache-2.0
"""Latencies as seen, and seconds worked out from declared profiles."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from medflare.core.data_order import derived_seed
from medflare.core.errors import ConfigError
from medflare.core.timing import Timing
from medflare.selection.baselines import UniformSelector
from medflare.selection.clock import (
    SimulatedClock,
    SiteProfile,
    drawn_profiles,
    read_profiles,
    seconds_to_target,
)
from medflare.selection.latency import Latencies
from medflare.selection.sampling import data_shares
from medflare.selection.selectors import DdcsSelector, Selector, SiteStatistics

# ---- latencies ---------------------------------------------------------------------------------------------


def test_means_are_exponential_and_computing_is_apart_from_transfer() -> None:
    latencies = Latencies(smoothing=0.5)
    for timing in ((10.0, 2.0), (20.0, 2.0), (20.0, 6.0)):
        latencies.observe("a", Timing(*timing))
    assert latencies.parts("a") == Timing(17.5, 4.0)
    assert latencies.estimates(["a"]) == {"a": 21.5}


def test_a_quantile_plans_for_sites_that_are_slow_now_and_then() -> None:
    mean, careful = Latencies(), Latencies(quantile=0.9, window=10)
    for seconds in [1.0] * 8 + [100.0, 1.0]:
        for seen in (mean, careful):
            seen.observe("a", Timing(seconds, 0.0))
    assert careful.estimates(["a"])["a"] == pytest.approx(np.quantile([1.0] * 9 + [100.0], 0.9))
    assert mean.report()["a"]["compute_q50"] == 1.0
    for _ in range(10):
        careful.observe("a", Timing(1.0, 0.0))
    assert careful.estimates(["a"]) == {"a": 1.0}


def test_a_site_never_seen_is_taken_for_typical_and_before_anything_all_are_equal() -> None:
    latencies = Latencies()
    assert latencies.estimates(["b", "a"]) == {"a": 1.0, "b": 1.0}
    for site, seconds in (("a", 2.0), ("b", 4.0), ("c", 90.0)):
        latencies.observe(site, Timing(seconds, 0.0))
    assert latencies.estimates(["a", "d"]) == {"a": 2.0, "d": 2.0}
    assert latencies.estimates(["a", "b", "c", "d"])["d"] == 4.0


def test_a_site_that_vanished_counts_as_at_least_as_slow_as_it_was_waited_for() -> None:
    latencies = Latencies(smoothing=1.0)
    latencies.observe("a", Timing(3.0, 1.0))
    latencies.report_timeout("a", 60.0)
    latencies.report_timeout("b", 60.0)
    assert latencies.estimates(["a", "b"]) == {"a": 60.0, "b": 60.0}
    assert latencies.parts("a") == Timing(59.0, 1.0), "it computed all the time that it did not transfer"
    latencies.report_timeout("a", 5.0)
    assert latencies.estimates(["a"])["a"] >= 59.0
    latencies.report_timeout("c", 0.5)
    assert latencies.parts("c") == Timing(0.5, 0.0)


def test_latencies_survive_a_restart() -> None:
    seen, again = Latencies(), Latencies()
    for seconds in (1.0, 2.0, 5.0):
        seen.observe("a", Timing(seconds, 0.1))
    again.load_state_dict(json.loads(json.dumps(seen.state_dict())))
    assert again.report() == seen.report()
    assert again.estimates(["a"]) == seen.estimates(["a"])


@pytest.mark.parametrize("timing", [(-1.0, 2.0), (math.nan, 1.0), (math.inf, 0.0), (0.0, 0.0)])
def test_seconds_that_are_none_are_refused(timing: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="timing of 'a'"):
        Latencies().observe("a", Timing(*timing))


def test_settings_that_cannot_be_are_refused_together() -> None:
    words = r"^latencies: smoothing is 0.*; quantile is 2.*; window is 0; expected 1 or more\.$"
    with pytest.raises(ConfigError, match=words):
        Latencies(smoothing=0, quantile=2, window=0)


# ---- clocks ------------------------------------------------------------------------------------------------

FAST = SiteProfile(seconds_per_example=0.1, down=80, up=8)


def test_a_round_takes_examples_and_bytes_by_the_profile() -> None:
    clock = SimulatedClock({"a": FAST})
    assert clock.timing("a", 0, examples=50, down=10_000_000, up=1_000_000) == pytest.approx((5.0, 2.0))


def test_the_same_hospital_is_as_fast_in_the_same_round_of_every_run() -> None:
    profiles = drawn_profiles(["a", "b"], seed=1)
    one, other = SimulatedClock(profiles, 7), SimulatedClock(profiles, 7)
    other.timing("b", 0, 10, 0, 0)
    assert one.timing("a", 3, 10, 100, 100) == other.timing("a", 3, 10, 100, 100)
    assert one.timing("a", 3, 10, 100, 100) != one.timing("a", 4, 10, 100, 100)


def test_a_synchronous_round_waits_for_the_slowest_or_the_deadline() -> None:
    clock = SimulatedClock({"a": FAST})
    assert clock.advance({"a": Timing(1, 1), "b": Timing(4, 1)}) == []
    assert clock.now == 5.0
    assert clock.advance({"a": Timing(1, 1), "b": Timing(9, 1), "c": None}, deadline=8.0) == ["b", "c"]
    assert clock.now == 13.0
    assert clock.advance({"a": Timing(1, 1)}, deadline=8.0) == []
    assert clock.now == 15.0
    with pytest.raises(ValueError, match="sites c, d never answer"):
        clock.advance({"d": None, "c": None})
    assert clock.advance({"a": Timing(4, 4)}, deadline=8.0) == [], "just in time"
    assert clock.now == 23.0
    assert clock.advance({}) == []
    assert clock.now == 23.0


def test_both_times_vary_by_themselves_and_from_seed_site_and_round_alone() -> None:
    """Golden: e^(jitter z) for the first two normal numbers of the seed that `derived_seed` makes."""
    profile = SiteProfile(seconds_per_example=0.1, down=80, up=8, overhead=1.0, jitter=0.5)
    clock = SimulatedClock({"a": profile, "b": profile})
    random = np.random.default_rng(derived_seed(0, "timing", "a", 4))
    slower, farther = np.exp(0.5 * random.standard_normal(2))
    assert clock.timing("a", 4, 50, 10_000_000, 1_000_000) == pytest.approx((6 * slower, 2 * farther))
    assert clock.timing("b", 4, 50, 0, 0) != clock.timing("a", 4, 50, 0, 0)


def test_a_site_without_profile_is_named() -> None:
    with pytest.raises(ConfigError, match=r"site 'c' has no latency profile\. Profiles: a, b\."):
        SimulatedClock({"b": FAST, "a": FAST}).timing("c", 0, 1, 0, 0)


def test_an_unreliable_site_vanishes_as_often_as_its_profile_says() -> None:
    shaky = SiteProfile(seconds_per_example=0.1, down=80, up=8, reliability=0.7)
    clock = SimulatedClock({"a": shaky})
    answers = [clock.timing("a", number, 1, 0, 0) is not None for number in range(1000)]
    assert np.mean(answers) == pytest.approx(0.7, abs=0.06)


def test_profiles_are_read_strictly_and_all_faults_come_together() -> None:
    good = {"seconds_per_example": 1.0, "down": 10.0, "up": 1.0}
    assert read_profiles({"a": good})["a"].jitter == 0.0
    wrong = {"b": good | {"speed": 1}, "c": good | {"up": 0}, "d": {"down": 1.0}}
    with pytest.raises(ConfigError) as caught:
        read_profiles({"a": good} | wrong)
    message = str(caught.value)
    assert "'b': unknown keys speed" in message
    assert "'c': latency profile: up is 0" in message
    assert "'d'" in message
    with pytest.raises(ConfigError, match="site 'z' has no latency profile"):
        SimulatedClock({"a": FAST}).timing("z", 0, 1, 0, 0)


def test_a_target_is_reached_when_the_curve_first_crosses_it() -> None:
    curve = [(1.0, 0.2), (5.0, 0.6), (9.0, 0.5), (12.0, 0.8)]
    assert seconds_to_target(curve, 0.6) == 5.0
    assert seconds_to_target(curve, 0.9) is None


# ---- a hundred hospitals -----------------------------------------------------------------------------------


def hours(selector: Selector, sites: list[str], rounds: int) -> float:
    """Simulated time of `rounds` rounds; latencies are learnt as they are seen."""
    sizes = np.random.default_rng(0).integers(20, 400, len(sites)).tolist()
    examples = dict(zip(sites, sizes, strict=True))
    clock, known = SimulatedClock(drawn_profiles(sites, 5), 5), SiteStatistics()
    random, shares = np.random.default_rng(1), data_shares(examples, sites)
    for number in range(rounds):
        draw = selector.choose(number, shares, known, random)
        timings = {s: clock.timing(s, number, examples[s], 40_000_000, 40_000_000) for s in draw.sites}
        clock.advance(timings)
        for site, timing in timings.items():
            assert timing is not None
            known.latencies.observe(site, timing)
    return clock.now / 3600


def test_a_hundred_hospitals_in_seconds_and_ddcs_spends_less_time() -> None:
    sites = [f"hospital-{i:03d}" for i in range(100)]
    began = time.process_time()
    uniform, ddcs = (
        hours(UniformSelector(draws=5), sites, 60),
        hours(DdcsSelector(draws=5, period=5), sites, 60),
    )
    assert ddcs < uniform
    assert hours(UniformSelector(draws=5), sites, 60) == uniform
    assert time.process_time() - began < 300
