# SPDX-License-Identifier: Apache-2.0
"""Rules that choose who trains: what they add up, with and without masks, and what they remember."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import NeedsExactSizes, NeedsSketches
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.timing import Timing
from medflare.core.update import Update
from medflare.federation.server.run_state import RunState, load_state, save_state
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Triple
from medflare.learners.client_terms import ClientTerms
from medflare.protections.weighting import UpdateWeighting
from medflare.selection.rules import Ddcs
from medflare.selection.sampled_mean import WEIGHT, SampledMean

EXAMPLES = {"a": 40, "b": 30, "c": 15, "d": 10, "e": 5}
SITES = list(EXAMPLES)
STATE: State = {"w": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(4)}
DELTAS = dict(zip(SITES, ((1.0, 0.0), (0.0, 2.0), (-3.0, 1.0), (4.0, 4.0), (9.0, -9.0)), strict=True))
FULL = sum(n / 100 * np.array(DELTAS[site]) for site, n in EXAMPLES.items())


def update(site: str) -> Update:
    delta = {"w": torch.tensor(DELTAS[site], dtype=torch.float64), "n": torch.tensor(0)}
    return Update(delta=delta, examples=EXAMPLES[site])


def made(name: str = "ddcs", **given: Any) -> SampledMean:
    rule = make_rule(name, given)
    assert isinstance(rule, SampledMean)
    for seconds, site in enumerate(SITES, 1):
        rule.observe_latency(site, Timing(float(seconds), 0.5))
    return rule


def one_round(rule: SampledMean, number: int, gone: tuple[str, ...] = (), least: int = 1) -> np.ndarray:
    sites = rule.sample_clients(number, 7, EXAMPLES, SITES, least)
    rule.begin(STATE)
    for site in sites:
        if site not in gone:
            rule.add(site, update(site))
    return rule.finish()["w"].numpy()


def test_weights_as_drawn_are_a_setting_of_ddcs_whose_shares_sum_to_one() -> None:
    rule = made(weights="drawn", draws=4)
    for number in range(5):
        one_round(rule, number)
        report = rule.report()
        assert report["importance"] == {site: count / 4 for site, count in report["drawn"].items()}
    with pytest.raises(ConfigError, match="weights"):
        make_rule("ddcs", {"weights": "biased"})


@pytest.mark.parametrize("name", ["ddcs", "uniform_selection", "importance_sampling"])
def test_the_mean_step_over_many_rounds_is_that_of_all_sites(name: str) -> None:
    rule = made(name, draws=4)
    steps = np.stack([one_round(rule, number, least=3) for number in range(700)])
    assert np.all(np.abs(steps.mean(axis=0) - FULL) <= 4 * steps.std(axis=0) / np.sqrt(len(steps)))


def test_a_step_is_the_sum_of_importance_weights_times_differences() -> None:
    rule = made(draws=3)
    step = one_round(rule, 0)
    report = json.loads(json.dumps(rule.report(), allow_nan=False))
    weights = report["importance"]
    assert step == pytest.approx(sum(w * np.array(DELTAS[s]) for s, w in weights.items()))
    assert sum(report["weights"].values()) == pytest.approx(1.0)
    assert set(report["drawn"]) == set(weights)
    assert report["solution"]["feasible"]


def test_a_draw_depends_on_seed_and_round_alone() -> None:
    rule, again = made(draws=3), made(draws=3)
    again.sample_clients(0, 7, EXAMPLES, SITES)
    assert rule.sample_clients(4, 7, EXAMPLES, SITES) == again.sample_clients(4, 7, EXAMPLES, SITES[::-1])
    assert len({tuple(rule.sample_clients(number, 7, EXAMPLES, SITES)) for number in range(20)}) > 1
    assert len({tuple(rule.sample_clients(0, seed, EXAMPLES, SITES)) for seed in range(20)}) > 1


def test_a_site_that_vanishes_adds_nothing_and_is_named() -> None:
    rule = made(draws=6)
    number = next(n for n in range(50) if {"a", "b"} <= set(rule.sample_clients(n, 7, EXAMPLES, SITES)))
    step = one_round(rule, number, gone=("b",))
    report = rule.report()
    left = {s: w for s, w in report["importance"].items() if s != "b"}
    assert step == pytest.approx(sum(w * np.array(DELTAS[s]) for s, w in left.items()))
    assert report["vanished"] == ["b"]
    assert report["ages"]["b"] == 1
    assert report["ages"]["a"] == 0
    rule.report_timeout("b", 90.0)
    assert rule.report()["latencies"]["b"]["compute"] > 20


def test_all_vanished_is_an_error_and_the_state_stays() -> None:
    rule = made()
    with pytest.raises(ValueError, match="no update"):
        one_round(rule, 0, gone=tuple(SITES))


def test_under_masks_the_mean_of_the_sum_becomes_the_same_step() -> None:
    """Each site divides by the largest weight; the server sees Σ f Δ / Σ f and Σ w."""
    rule, masked = made(draws=5), made(draws=5)
    straight = one_round(rule, 3, least=3)
    sites = masked.sample_clients(3, 7, EXAMPLES, SITES, 3)
    masked.begin(STATE)
    hints = RoundHints.from_json(json.loads(json.dumps(masked.round_hints().to_json())))
    net, factors, whole = nn.Linear(2, 1), {}, 0.0
    for site in sites:
        terms = ClientTerms(site, lambda: dict(net.named_parameters()))
        terms.begin(RoundPlan(round=3, rounds=9, hints=hints))
        output = terms.finish()
        factors[site] = output.factor
        whole += float(output.sums[WEIGHT])
    weighing = UpdateWeighting.of(masked, EXAMPLES)
    assert (
        max(weighing.weight({"examples": 3, "factor": f}) for f in factors.values())
        == weighing.max_weight
        == 1.0
    )
    mean = sum(f * np.array(DELTAS[s]) for s, f in factors.items()) / sum(factors.values())
    opened = Update(
        delta={"w": torch.from_numpy(mean), "n": torch.tensor(0)},
        examples=1,
        sums={WEIGHT: torch.tensor(whole)},
    )
    masked.add("all sites", opened)
    assert masked.finish()["w"].numpy() == pytest.approx(straight, rel=1e-5)
    assert masked.update_server_state({WEIGHT: torch.tensor(1.0), "bank": torch.ones(1)}, 5).keys() == {
        "bank"
    }


def test_three_different_sites_are_drawn_under_masks_or_it_is_refused() -> None:
    rule = made(draws=4)
    assert all(len(rule.sample_clients(number, 1, EXAMPLES, SITES, 3)) >= 3 for number in range(40))
    with pytest.raises(ConfigError, match="2 draws from 5 sites give 3 different ones never"):
        made(draws=2).sample_clients(0, 1, EXAMPLES, SITES, 3)
    with pytest.raises(ConfigError, match="none of the sites a, b has training examples"):
        rule.sample_clients(0, 1, {"a": 0, "b": 0}, ["b", "a"])


@pytest.mark.parametrize("name", ["ddcs", "uniform_selection", "importance_sampling", "fedcs"])
def test_two_sites_with_data_never_make_a_masked_sum_and_may_train_in_the_clear(name: str) -> None:
    examples = {"a": 5, "b": 5, "c": 0}
    with pytest.raises(ConfigError, match="2 sites"):
        make_rule(name, {}).sample_clients(0, 7, examples, ["a", "b", "c"], 3)
    assert set(make_rule(name, {}).sample_clients(0, 7, examples, ["a", "b", "c"])) <= {"a", "b"}


def test_a_run_under_masks_does_not_end_where_one_site_has_nearly_all_data() -> None:
    rule, examples = make_rule("ddcs", {"draws": 5, "age_bonus": 0.0}), {"a": 2000, "b": 30, "c": 25}
    mixed = []
    for number in range(12):
        assert rule.sample_clients(number, 7, examples, list(examples), 3) == ["a", "b", "c"]
        for site, seconds in {"a": 5.0, "b": 60.0, "c": 70.0}.items():
            rule.observe_latency(site, Timing(seconds, 0.1))
        rule.abort_round()
        mixed.append(rule.report().get("mixed", 0.0))
    assert mixed[0] == 0.0
    assert any(0.001 < share < 0.1 for share in mixed)


def test_sketches_hold_the_odds_within_epsilon() -> None:
    rule = make_rule("ddcs", {"draws": 3, "age_bonus": 0.0})
    assert isinstance(rule, Ddcs)
    for seconds, site in enumerate(SITES, 1):
        rule.observe_latency(site, Timing(20.0 if site in "bc" else float(seconds), 0.5))
    sketcher = Sketcher(SketchKey(bytes(32), "p"), 128)
    for at, site in enumerate(SITES):
        rule.sample_clients(0, 1, EXAMPLES, SITES)
        rule.set_sketch(site, sketcher.sketch({Triple("x", "y", str(i + 40 * at)): 1.0 for i in range(100)}))
    rule.sample_clients(0, 1, EXAMPLES, SITES)
    solution = rule.chosen.solution
    assert solution is not None
    assert 0 < solution.divergence <= solution.epsilon + 1e-8


def test_exact_sizes_hold_the_odds_within_epsilon_as_sketches_do() -> None:
    rule = made(distances="exact", epsilon=0.1, floor=0.1)
    needs = [(bool(r.capability(NeedsExactSizes)), bool(r.capability(NeedsSketches))) for r in (rule, made())]
    assert needs == [(True, False), (False, True)]
    assert rule.known.distances(SITES) is None
    sizes = dict.fromkeys(SITES, 100)
    alike = {(one, other): 100 for one in "de" for other in SITES if one > other and other not in "abc"}
    apart = {(one, other): 0 for one in SITES for other in SITES if one > other and other in "abc"}
    rule.set_exact_sizes(sizes, {**alike, **apart})
    one_round(rule, 0)
    solution = rule.report()["solution"]
    assert solution["divergence"] > 0
    assert rule.known.distances(["d", "e", "a"]).tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    again = made(distances="exact")
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert np.array_equal(again.known.distances(SITES), rule.known.distances(SITES))


def test_on_pairs_of_sites_repeating_the_fastest_keeps_no_epsilon() -> None:
    """The fastest hospital is like nobody. On draws its repeats are within ε, on sites they are no pair."""
    sketcher, odds = Sketcher(SketchKey(bytes(32), "p"), 128), {}
    for pairs_of in ("draws", "sites"):
        rule = made(draws=3, age_bonus=0.0, pairs_of=pairs_of)
        assert isinstance(rule, Ddcs)
        for at, site in enumerate(SITES):
            first = 0 if site == "a" else 1000 + 20 * at
            graph = {Triple("x", "y", str(first + i)): 1.0 for i in range(100)}
            rule.set_sketch(site, sketcher.sketch(graph))
        rule.sample_clients(0, 1, EXAMPLES, SITES)
        solution = rule.report()["solution"]
        assert solution["divergence"] <= solution["epsilon"] + 1e-8
        odds[pairs_of] = solution["q"]
    assert odds["draws"]["a"] == max(odds["draws"].values()) > 0.8
    assert odds["sites"]["a"] < odds["draws"]["a"]
    assert max(odds["sites"], key=odds["sites"].__getitem__) != "a"


def test_a_site_that_breaks_within_a_period_loses_its_odds_at_once() -> None:
    rule = made(draws=3, age_bonus=0.0, period=100)
    one_round(rule, 0)
    before = rule.report()["solution"]["q"]
    assert max(before, key=before.__getitem__) == "a"
    rule.observe_latency("b", Timing(1.5, 0.0))
    one_round(rule, 1)
    assert rule.report()["solution"]["q"] == before, "within a period"
    rule.report_timeout("a", 600.0)
    one_round(rule, 2)
    after = rule.report()["solution"]["q"]
    assert max(after, key=after.__getitem__) == "b"


def test_the_memory_of_a_rule_survives_a_restart(tmp_path: Path) -> None:
    straight, first = made(draws=3), made(draws=3)
    sketch = Sketcher(SketchKey(bytes(32), "p"), 64).sketch({Triple("x", "y", "z"): 1.0})
    for rule in (straight, first):
        rule.set_sketch("a", sketch)
        one_round(rule, 0)
        rule.observe_latency("a", Timing(400.0, 0.0))
    save_state(tmp_path, RunState(exchanges_done=1, shared=STATE, rule=first.state_dict()))
    again = make_rule("ddcs", {"draws": 3})
    assert isinstance(again, SampledMean)
    again.load_state_dict(load_state(tmp_path).rule)
    for number in (1, 2, 5, 6):
        assert np.array_equal(one_round(straight, number), one_round(again, number))


def test_fedcs_leaves_out_who_is_too_slow() -> None:
    rule = made("fedcs", deadline=3.6)
    assert rule.sample_clients(0, 1, EXAMPLES, SITES) == ["a", "b", "c"]
    assert sum(rule.round_hints().importance.weights.values()) == pytest.approx(1.0)


def test_uniform_selection_can_hold_drawn_sites_near_what_they_received() -> None:
    assert make_rule("uniform_selection", {"mu": 0.1}).round_hints().proximal.mu == 0.1
    assert make_rule("uniform_selection", {}).round_hints().proximal is None


def test_a_sum_whose_weights_are_not_those_of_the_sites_in_it_changes_nothing() -> None:
    rule = make_rule("uniform_selection", {"draws": 3})
    sites = rule.sample_clients(0, 0, dict.fromkeys("abcd", 10), list("abcd"), 3)
    right = sum(rule.round_hints().importance.weights[site] for site in sites)
    for told, moved in ((right, True), (-1000.0, False), (2 * right, False)):
        rule.begin({"w": torch.zeros(2)})
        sums = {WEIGHT: torch.tensor(told, dtype=torch.float64)}
        rule.add("all sites", Update(delta={"w": torch.ones(2)}, examples=1, sums=sums))
        rule.set_sum_members(sites)
        assert bool(rule.finish()["w"].any()) is moved
        assert ("refused_sum" in rule.report()) is not moved


def opened_sum(told: float) -> Update:
    sums = {WEIGHT: torch.tensor(told, dtype=torch.float64)}
    return Update(delta={"w": torch.ones(2)}, examples=1, sums=sums)


@pytest.mark.parametrize("odds", [0.5, 2.0])
def test_the_rounding_of_masks_is_no_forgery(odds: float) -> None:
    """A thousandth is allowed: of the sum where it is above 1, else of 1."""
    rule, shares = make_rule("uniform_selection", {"draws": 3}), dict.fromkeys("abcd", 10)
    sites = rule.sample_clients(0, 0, shares, list("abcd"), 3)
    assert isinstance(rule, SampledMean)
    assert rule._sample is not None
    rule._sample = replace(rule._sample, weights=dict.fromkeys(sites, odds))
    right = odds * len(sites)
    for beyond, moved in ((0.0009, True), (0.0011, False), (-0.0009, True), (-0.0011, False)):
        rule.begin({"w": torch.zeros(2)})
        rule.add("all sites", opened_sum(right + beyond * max(right, 1.0)))
        rule.set_sum_members(sites)
        assert bool(rule.finish()["w"].any()) is moved, beyond


def test_a_sum_that_names_no_members_is_of_whatever_sites_it_says() -> None:
    rule = make_rule("uniform_selection", {"draws": 3})
    sites = rule.sample_clients(0, 0, dict.fromkeys("abcd", 10), list("abcd"), 3)
    right = sum(rule.round_hints().importance.weights[site] for site in sites)
    rule.begin({"w": torch.zeros(2)})
    rule.add("all sites", opened_sum(0.6 * right))
    assert rule.finish()["w"].tolist() == pytest.approx([0.6 * right] * 2)
    report = rule.report()
    assert report["vanished"] == []
    assert set(report["odds"]) == set("abcd")
    assert "mixed" not in report


def test_importance_sampling_learns_the_norms_of_updates_and_ddcs_looks_at_none() -> None:
    rule, other = made("importance_sampling", draws=4), made("ddcs", draws=4)
    for one in (rule, other):
        one_round(one, 0)
    trained = rule.report()["drawn"]
    assert rule.known.norms == pytest.approx({site: np.hypot(*DELTAS[site]) for site in trained})
    assert other.known.norms == {}


def test_a_drawn_site_that_is_not_in_the_opened_sum_has_not_trained() -> None:
    rule = make_rule("uniform_selection", {"draws": 3})
    sites = rule.sample_clients(0, 0, dict.fromkeys("abcd", 10), list("abcd"), 3)
    gone, *members = sites
    rule.begin({"w": torch.zeros(2)})
    weight = sum(rule.round_hints().importance.weights[site] for site in members)
    sums = {WEIGHT: torch.tensor(weight, dtype=torch.float64)}
    rule.add("all sites", Update(delta={"w": torch.ones(2)}, examples=1, sums=sums))
    rule.set_sum_members(members)
    assert bool(rule.finish()["w"].any())
    report = rule.report()
    assert report["vanished"] == [gone]
    assert {site: report["ages"][site] for site in sites} == {gone: 1, **dict.fromkeys(members, 0)}


TRAINED_ON = {"a": 40, "b": 30, "c": 15}


def test_a_site_that_is_not_eligible_grows_older_too() -> None:
    rule = make_rule("ddcs", {"draws": 60, "age_bonus": 0.0})
    ages = []
    for number, eligible in enumerate(("abc", "ac", "ac", "abc")):
        sites = rule.sample_clients(number, 7, TRAINED_ON, list(eligible))
        rule.begin({"w": torch.zeros(2)})
        for site in sites:
            rule.add(site, Update(delta={"w": torch.ones(2)}, examples=TRAINED_ON[site]))
        rule.finish()
        ages.append(rule.report()["ages"])
    assert [seen["b"] for seen in ages] == [0, 1, 2, 0]


def test_in_a_lost_round_all_grow_older() -> None:
    rule = make_rule("ddcs", {"draws": 60})
    for number, eligible in enumerate(("abc", "ac")):
        rule.sample_clients(number, 7, TRAINED_ON, list(eligible))
        rule.begin({"w": torch.zeros(2)})
        rule.abort_round()
    assert rule.report()["ages"] == {"a": 2, "b": 2, "c": 2}
