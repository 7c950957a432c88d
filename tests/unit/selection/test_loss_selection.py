# SPDX-License-Identifier: Apache-2.0
"""Power-of-choice and Oort: whom they choose, worked out by hand, and what a resumed run remembers."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.timing import Timing
from medflare.core.update import Update
from medflare.selection.oort import PATIENCE, OortSelector
from medflare.selection.power_of_choice import PowerOfChoiceSelector
from medflare.selection.selectors import Selector, SiteStatistics

SHARES = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


def known(losses: dict[str, float], ages: dict[str, int] | None = None, **seconds: float) -> SiteStatistics:
    statistics = SiteStatistics(losses=losses, staleness=ages or {})
    for site, total in seconds.items():
        statistics.latencies.observe(site, Timing(total, 0.0))
    return statistics


def chosen(selector: Selector, statistics: SiteStatistics, rounds: int, number: int = 0) -> Counter[str]:
    random = np.random.default_rng(0)
    picks = [selector.choose(number, SHARES, statistics, random).sites for _ in range(rounds)]
    return Counter(site for sites in picks for site in sites)


def test_power_of_choice_takes_the_highest_losses_of_its_candidates_with_equal_weights() -> None:
    losses = {"a": 1.0, "b": 0.5, "c": 3.0, "d": 2.0}
    sample = PowerOfChoiceSelector(2, 4).choose(0, SHARES, known(losses), np.random.default_rng(0))
    assert sample.weights == {"c": 0.5, "d": 0.5}
    assert sample.counts == {"c": 1, "d": 1}
    assert sample.probabilities == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 1.0}
    del losses["b"]
    sample = PowerOfChoiceSelector(2, 4).choose(0, SHARES, known(losses), np.random.default_rng(0))
    assert sample.sites == ["b", "c"], "a site that never trained comes first"


def test_with_two_candidates_the_worse_trains_with_the_probability_of_being_drawn() -> None:
    """P(d among two) = .1 + .4·.1/.6 + .3·.1/.7 + .2·.1/.8 = .2345; without d, c with .4·.2/.6 + ..."""
    counts = chosen(PowerOfChoiceSelector(1, 2), known({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}), 4000)
    c = 0.4 * 0.2 / 0.6 + 0.3 * 0.2 / 0.7 + 0.2 * (0.4 + 0.3) / 0.8
    assert counts["d"] / 4000 == pytest.approx(0.2345, abs=0.02)
    assert counts["c"] / 4000 == pytest.approx(c, abs=0.025)
    assert counts["a"] == 0


def test_oorts_utilities_are_those_of_its_equation() -> None:
    """Data .4, .6, .2, .4; from .1998 to .6; age bonus √(.1 ln 3 / last); T = 3 s of 2, 4, 1 and 8."""
    losses = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 4.0}
    statistics = known(losses, {"a": 0, "b": 1, "c": 0, "d": 0}, a=2, b=4, c=1, d=8)
    found = OortSelector(pace=0.5).utilities(list(SHARES), 3, SHARES, statistics)
    assert found == pytest.approx({"a": 0.734623, "b": 0.748942, "c": 0.234872, "d": 0.103306}, rel=1e-5)
    even = OortSelector(pace=0.5, penalty=0.0).utilities(list(SHARES), 3, SHARES, statistics)
    assert even["d"] == pytest.approx(even["a"])


def test_oort_tries_new_sites_first_and_then_draws_near_the_best() -> None:
    statistics = known({"a": 1.0}, a=2)
    assert chosen(OortSelector(clients=2), statistics, 50)["a"] == 0, (
        "2 of 2 are tried out in the first round"
    )
    assert chosen(OortSelector(clients=2), statistics, 50, number=200)["a"] == 50
    statistics = known({"a": 1.0, "b": 2.0, "c": 1.0, "d": 4.0}, {"b": 1}, a=2, b=4, c=1, d=8)
    counts = chosen(OortSelector(clients=1, pace=0.5), statistics, 400, number=2)
    assert set(counts) == {"a", "b"}, "the others are below 95 % of the best"


def test_oort_counts_rounds_from_1_where_it_weighs_how_long_ago_a_site_trained() -> None:
    """In round 2 b has .850 + √(.1 ln 2) = 1.113, below 95 % of a's 1.263; in round 3 it would not be."""
    even = dict.fromkeys(SHARES, 0.25)
    statistics = known({"a": 3.0, "b": 2.7, "c": 1.0, "d": 1.0}, {"b": 1}, a=1, b=1, c=1, d=1)
    random = np.random.default_rng(0)
    picks = [OortSelector(clients=1).choose(1, even, statistics, random).sites for _ in range(30)]
    assert picks == [["a"]] * 30


def test_oort_draws_new_sites_by_their_speed() -> None:
    statistics = known({}, a=1, b=2, c=4, d=4)
    counts = chosen(OortSelector(clients=1), statistics, 4000)
    for site, share in {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125}.items():
        assert counts[site] / 4000 == pytest.approx(share, abs=0.03)


def test_oorts_sites_count_once_by_their_examples_and_its_pacer_sums_what_they_lost_before() -> None:
    selector = OortSelector(clients=3)
    sample = selector.choose(0, SHARES, known({"a": 0.5, "b": 1.0}), np.random.default_rng(0))
    assert sorted(sample.sites) == ["b", "c", "d"], "two new sites, and the better of those tried"
    assert sample.counts == {"b": 1, "c": 1, "d": 1}
    assert sample.weights == pytest.approx({"b": 3 / 6, "c": 2 / 6, "d": 1 / 6})
    assert sample.probabilities == {"a": 0.0, "b": 1.0, "c": 1.0, "d": 1.0}
    assert selector.gained == pytest.approx([0.3 * 1.0]), "a site that never trained lost nothing yet"


def test_oort_alone_with_one_site_takes_it() -> None:
    sample = OortSelector().choose(0, {"a": 1.0}, SiteStatistics(), np.random.default_rng(0))
    assert sample.weights == {"a": 1.0}


def test_settings_of_oort_reach_its_choice() -> None:
    selector = make_rule("oort", {"clients": 3, "penalty": 1.5, "pace": 0.4}).selector  # type: ignore[attr-defined]
    assert (selector.clients, selector.penalty, selector.pace) == (3, 1.5, 0.4)


@pytest.mark.parametrize(("before", "loss", "after"), [(0.98, 1.0, 1.0), (0.3, 2.0, 0.3)])
def test_oorts_pace_stays_below_all_sites_and_where_rounds_are_of_equal_use(
    before: float, loss: float, after: float
) -> None:
    selector = OortSelector(clients=1, pace=before, gained=[2.0] * PATIENCE + [loss] * (PATIENCE - 1))
    selector.choose(40, {"a": 1.0}, known({"a": loss}), np.random.default_rng(0))
    assert selector.pace == after


def test_oorts_pacer_lets_slower_sites_in_where_rounds_are_of_less_use() -> None:
    selector = OortSelector(clients=1)
    for number in range(2 * PATIENCE):
        loss = 2.0 if number < PATIENCE else 1.0
        selector.choose(number, SHARES, known(dict.fromkeys(SHARES, loss)), np.random.default_rng(0))
    assert selector.pace == pytest.approx(0.35)
    again = OortSelector(clients=1)
    again.load_state_dict(json.loads(json.dumps(selector.state_dict())))
    assert (again.pace, again.gained) == (selector.pace, selector.gained)


@pytest.mark.parametrize("name", ["power_of_choice", "oort"])
def test_a_resumed_run_remembers_losses_and_a_loss_that_is_no_number_is_not_taken(name: str) -> None:
    rule, examples = make_rule(name, {"clients": 3}), dict.fromkeys("abc", 10)
    rule.sample_clients(0, 7, examples, list(examples))  # type: ignore[attr-defined]
    rule.begin({"w": torch.zeros(1)})
    for site, loss in {"a": 0.5, "b": float("nan"), "c": 2.0}.items():
        rule.add(site, Update(delta={"w": torch.ones(1)}, examples=10, metrics={"loss": loss}))
    assert torch.equal(rule.finish()["w"], torch.ones(1))
    again = make_rule(name, {"clients": 3})
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert again.known.losses == {"a": 0.5, "c": 2.0}  # type: ignore[attr-defined]


def test_too_few_sites_and_too_few_candidates_are_named() -> None:
    for selector in (OortSelector(), PowerOfChoiceSelector()):
        with pytest.raises(ConfigError, match="4 sites have data, and 5 must train"):
            selector.choose(0, SHARES, SiteStatistics(), np.random.default_rng(0), 5)
    with pytest.raises(ConfigError, match="candidates is 2, and 3 of them must train"):
        make_rule("power_of_choice", {"clients": 3, "candidates": 2})


def test_settings_of_power_of_choice_reach_its_choice() -> None:
    rule = make_rule("power_of_choice", {"clients": 3, "candidates": 3})
    assert rule.selector == PowerOfChoiceSelector(3, 3)  # type: ignore[attr-defined]


def test_a_loss_of_zero_is_taken_and_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    rule, examples = make_rule("power_of_choice", {"clients": 3}), dict.fromkeys("abc", 10)
    rule.sample_clients(0, 7, examples, list(examples))  # type: ignore[attr-defined]
    rule.begin({"w": torch.zeros(1)})
    for site, metrics in {"a": {"loss": 0.0}, "b": {"loss": -1.0}, "c": {}}.items():
        rule.add(site, Update(delta={"w": torch.ones(1)}, examples=10, metrics=metrics))
    assert rule.known.losses == {"a": 0.0}  # type: ignore[attr-defined]
    words = ("loss of b is -1.0; the site keeps the loss before.", "loss of c is nan; the site keeps")
    assert [text.startswith(word) for text, word in zip(caplog.messages, words, strict=True)] == [True, True]
