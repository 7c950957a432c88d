# SPDX-License-Identifier: Apache-2.0
"""Numbers that the papers and the specification fix, what robust rules refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from documented_rule import documented_rule
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.bulyan import mean_around_median
from medflare.aggregation.fedopt import FedAdam, FedAvgM, FedYogi
from medflare.aggregation.geometric_median import coordinates, weiszfeld
from medflare.aggregation.krum import krum_scores, unit_length
from medflare.aggregation.median import median
from medflare.aggregation.robust import BLOCK, coordinatewise, gram_matrix, squared_distances
from medflare.aggregation.trimmed_mean import trimmed_mean
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.update import Update

D, LOSS = (1655, 1241, 828, 414), (1.2, 1.3, 1.4, 1.6)


def scalar(value: float, examples: int = 10, **metrics: float) -> Update:
    return Update(delta={"w": torch.tensor([value], dtype=torch.float64)}, examples=examples, metrics=metrics)


def run(rule: AggregationRule, *updates: Update, start: float = 0.0) -> float:
    rule.begin({"w": torch.tensor([start], dtype=torch.float64)})
    for i, update in enumerate(updates):
        rule.add(f"s{i}", update)
    return rule.finish()["w"].item()


# ---- L-FedAvg ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss_weight", "expected"),
    [("raw", (0.3129, 0.2712, 0.2320, 0.1839)), ("normalised", (0.3416, 0.2807, 0.2214, 0.1562))],
)
def test_vector_4_weights_of_l_fedavg(loss_weight: str, expected: tuple[float, ...]) -> None:
    rule = make_rule("l_fedavg", {"loss_weight": loss_weight})
    sites = [scalar(float(i), n, val_loss=x) for i, (n, x) in enumerate(zip(D, LOSS, strict=True))]
    result = run(rule, *sites)
    weights = rule.report()["weights"]
    assert list(weights.values()) == pytest.approx(expected, abs=5e-5)
    assert result == pytest.approx(sum(i * w for i, w in enumerate(weights.values())))


@pytest.mark.parametrize("loss_weight", ["raw", "normalised"])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -0.5, None])
def test_a_broken_loss_counts_as_the_median_of_the_others(loss_weight: str, broken: float | None) -> None:
    given = {} if broken is None else {"val_loss": broken}
    rule, plain = (make_rule("l_fedavg", {"loss_weight": loss_weight}) for _ in range(2))
    others = [scalar(1.0, 10, val_loss=0.5), scalar(2.0, 20, val_loss=0.8), scalar(5.0, 30, val_loss=4.0)]
    result = run(rule, *others, scalar(9.0, 40, **given))
    assert result == pytest.approx(run(plain, *others, scalar(9.0, 40, val_loss=0.8)))
    assert rule.report()["replaced"] == ["s3"]


@pytest.mark.parametrize("source", ["server", "cross"])
def test_a_measured_loss_stands_in_for_what_sites_say(source: str) -> None:
    measured, claimed = {"s0": 0.5, "s1": 2.0}, [0.1, 0.1]
    rule = make_rule("l_fedavg", {"omega": 0.0, "loss_source": source})
    seen: list[float] = []
    rule.set_score(lambda site, state: seen.append(float(state["w"])) or measured[site])
    result = run(rule, *(scalar(float(i), val_loss=x) for i, x in enumerate(claimed)))
    assert rule.report()["losses"] == measured
    assert result == pytest.approx(0.2)
    assert seen == [0.0, 1.0]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -0.5])
def test_a_model_without_a_measured_loss_is_refused(broken: float) -> None:
    rule = make_rule("l_fedavg", {"loss_source": "server"})
    rule.set_score(lambda site, state: broken)
    with pytest.raises(UpdateError, match=f"validation loss of {broken}, expected a finite number"):
        run(rule, scalar(1.0))


def test_a_loss_that_nobody_measures_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="'cross' needs somebody who measures"):
        run(make_rule("l_fedavg", {"loss_source": "cross"}), scalar(1.0))


def test_without_any_loss_omega_mixes_data_and_uniform() -> None:
    sites = scalar(0.0, 10), scalar(1.0, 30)
    assert run(make_rule("l_fedavg", {"omega": 0.5}), *sites) == pytest.approx(0.5 * 0.75 + 0.5 * 0.5)
    raw = run(make_rule("l_fedavg", {"omega": 0.5, "loss_weight": "raw"}), *sites)
    assert raw == pytest.approx((0.5 * 0.75 + 0.5 * 1) / (0.5 + 0.5 * 2)), "each loss counts as 1"


def test_a_loss_of_zero_counts_as_the_floor() -> None:
    rule = make_rule("l_fedavg", {"omega": 0.0})
    assert run(rule, scalar(0.0, val_loss=0.0), scalar(1.0, val_loss=2e-3)) == pytest.approx(1 / 3)


# ---- Krum and its relatives --------------------------------------------------------------------------------


def test_vector_5_krum_scores_and_the_tie_of_the_closest_pair() -> None:
    values = (0.0, 1.0, 3.0, 10.0)
    rule = make_rule("krum", {"f": 1, "allow_unsafe": True})
    assert run(rule, *map(scalar, values)) == 0.0, "equal examples: the first name"
    assert list(rule.report()["scores"].values()) == [1, 1, 4, 49]
    more = [scalar(v, 11 if v == 1.0 else 10) for v in values]
    assert run(rule, *more) == 1.0, "more examples win a tie (VG-7)"
    assert rule.report()["selected"] == ["s1"]


@pytest.mark.parametrize(
    ("name", "least"), [("krum", 5), ("multi_krum", 5), ("trimmed_mean", 3), ("bulyan", 7)]
)
def test_too_few_sites_are_refused_or_named_in_a_warning(name: str, least: int, caplog: Any) -> None:
    few = [scalar(float(i)) for i in range(least - 1)]
    kind = type(make_rule(name, {})).__name__
    problem = f"{kind} with f = 1 needs {least} accepted updates and has {least - 1}"
    with pytest.raises(ConfigError, match=rf"{problem}.*allow_unsafe"):
        run(make_rule(name, {"f": 1}), *few)
    unsafe = make_rule(name, {"f": 1, "allow_unsafe": True})
    run(unsafe, *few)
    assert [record.getMessage() for record in caplog.records] == [
        f"{problem}: this round has no Byzantine guarantee."
    ]
    assert unsafe.report()["byzantine_guarantee"] is False
    safe = make_rule(name, {"f": 1})
    run(safe, *few, scalar(9.0))
    assert safe.report()["byzantine_guarantee"] is True


def test_multi_krum_averages_those_it_keeps() -> None:
    values = [scalar(v) for v in (0.0, 1.0, 2.0, 3.0, 50.0, 60.0)]
    assert run(make_rule("multi_krum", {"f": 1, "keep": 4}), *values) == pytest.approx(1.5)
    assert run(make_rule("multi_krum", {"f": 1, "keep": 1}), *values) in (1.0, 2.0)


def test_krum_favours_small_movers_unless_it_compares_directions() -> None:
    """VG-9: five sites go one way, each further than the last; four hardly move, the other way."""
    moves = [scalar(v, 10) for v in (-0.001, -0.002, -0.003, -0.004, 1.0, 2.0, 4.0, 8.0, 16.0)]
    assert run(make_rule("krum", {"f": 3}), *moves) < 0
    assert run(make_rule("krum", {"f": 3, "directions": True}), *moves) > 0


def test_the_medoid_is_not_krum() -> None:
    values = [scalar(v) for v in (0.0, 0.1, 0.2, 0.3, 5.0, 6.0, 7.0, 8.0, 9.0)]
    assert run(make_rule("medoid", {}), *values) == 5.0
    assert run(make_rule("krum", {"f": 4, "allow_unsafe": True}), *values) < 1


def test_the_medoid_tells_each_sites_sum_of_distances_and_who_won() -> None:
    rule = make_rule("medoid", {})
    run(rule, *(scalar(v) for v in (0.0, 1.0, 3.0)))
    assert rule.report() == {"scores": pytest.approx({"s0": 4.0, "s1": 3.0, "s2": 5.0}), "selected": ["s1"]}


@pytest.mark.parametrize(
    ("f", "values", "mean"),
    [
        (1, (5.0,), 5.0),
        (1, (0.0, 6.0), 3.0),
        (2, (0.0, 1.0, 8.0), 1.0),
        (2, (0.0, 1.0, 3.0, 8.0), 2.0),
        (9, (0.0, 1.0, 2.0, 7.0, 8.0), 2.0),
    ],
)
def test_with_few_sites_as_many_are_trimmed_as_leave_the_middle(
    f: int, values: tuple[float, ...], mean: float
) -> None:
    assert run(make_rule("trimmed_mean", {"f": f, "allow_unsafe": True}), *map(scalar, values)) == mean


@pytest.mark.parametrize(("f", "sites", "kept"), [(1, 7, 5), (2, 11, 7), (2, 4, 1), (3, 15, 9)])
def test_bulyan_selects_all_but_two_f_and_says_whom(f: int, sites: int, kept: int) -> None:
    rule = make_rule("bulyan", {"f": f, "allow_unsafe": True})
    run(rule, *(scalar(float(i)) for i in range(sites - 1)), scalar(1e6))
    chosen = rule.report()["selected"]
    assert len(chosen) == kept
    assert chosen == sorted(set(chosen) - {f"s{sites - 1}"})


@pytest.mark.parametrize(("f", "sites", "kept"), [(1, 3, 1), (1, 5, 2), (2, 4, 1), (2, 9, 5)])
def test_multi_krum_keeps_all_but_f_and_two_and_one_at_least(f: int, sites: int, kept: int) -> None:
    rule = make_rule("multi_krum", {"f": f, "allow_unsafe": True})
    run(rule, *(scalar(float(i)) for i in range(sites)))
    assert len(rule.report()["selected"]) == kept


def test_a_site_that_did_not_move_has_no_direction_and_breaks_nothing() -> None:
    still, *moved = unit_length([{"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}])
    assert still["w"].tolist() == [0.0, 0.0]
    assert moved[0]["w"].tolist() == pytest.approx([0.6, 0.8])


def test_order_statistics_by_hand() -> None:
    values = torch.tensor([[9.0], [1.0], [2.0], [4.0]])
    assert median(values).item() == 3.0
    assert median(values[:3]).item() == 2.0
    assert trimmed_mean(values, 1).item() == 3.0
    assert mean_around_median(values, 2).item() == 3.0
    assert mean_around_median(values, 3).item() == pytest.approx(7 / 3)


def test_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    """Vertices (0,0), (1,0), (½, √3/2): the centre; with an angle of 120° or more, the vertex there."""
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
    assert weiszfeld(points, torch.ones(3).double()).tolist() == pytest.approx([1 / 3] * 3, abs=1e-6)
    flat = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    assert weiszfeld(flat, torch.ones(3).double())[2].item() == pytest.approx(1.0, abs=1e-4)


def test_geometric_median_by_examples_follows_whoever_has_more_than_half() -> None:
    sites = [scalar(0.0, 60), scalar(1.0, 20), scalar(7.0, 30)]
    assert run(make_rule("geometric_median", {"weighting": "examples"}), *sites) == pytest.approx(0, abs=1e-4)
    assert run(make_rule("geometric_median", {}), *sites) == pytest.approx(1.0, abs=1e-4)


@given(st.integers(1, 6), st.integers(0, 1000), st.sampled_from([1.0, 1e6, 1e-6]))
@settings(deadline=None, max_examples=40)
def test_distances_by_gram_matrices_are_the_distances(m: int, seed: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, 40, generator=generator, dtype=torch.float64) + shift
    states = [{"w": row[:30].reshape(5, 6), "b": row[30:]} for row in x]
    gram = gram_matrix(states)
    expected = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    assert torch.allclose(squared_distances(gram), expected, rtol=1e-9, atol=1e-12)
    points = coordinates(gram)
    assert torch.allclose(torch.cdist(points, points).square(), expected, rtol=1e-6, atol=1e-6)


def test_blocks_give_what_one_piece_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(BLOCK + 7, generator=generator)} for _ in range(3)]
    x = torch.stack([state["w"] for state in states]).double()
    assert torch.equal(coordinatewise(states, median)["w"].double(), x.median(dim=0).values)
    assert squared_distances(gram_matrix(states))[0, 2].item() == pytest.approx(
        float((x[0] - x[2]).square().sum())
    )


def test_counters_take_part_in_the_result_but_not_in_distances() -> None:
    rule = make_rule("krum", {"allow_unsafe": True})
    rule.begin({"w": torch.zeros(1), "n": torch.tensor(100)})
    for site, (w, n) in {"a": (0.0, 5), "b": (0.1, 900), "c": (7.0, 5), "d": (9.5, 5)}.items():
        rule.add(
            site, Update(delta={"w": torch.tensor([w]), "n": torch.tensor(n)}, examples=9 + (site == "b"))
        )
    new = rule.finish()
    assert rule.report()["selected"] == ["b"]
    assert new["n"].item() == 1000


def test_krum_scores_of_one_and_of_two_sites() -> None:
    assert krum_scores(torch.zeros(1, 1), 1).tolist() == [0.0]
    assert krum_scores(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), 1).tolist() == [4.0, 4.0]


# ---- server optimisers -------------------------------------------------------------------------------------


def test_vector_7_first_step_of_fedyogi() -> None:
    rule = FedYogi()
    assert run(rule, scalar(0.1)) == pytest.approx(1e-2 * 0.01 / (1e-2 + 1e-3))
    assert (rule.m["w"].item(), rule.v["w"].item()) == (pytest.approx(0.01), pytest.approx(1e-4))


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "scaffold"])
def test_a_rule_that_had_kept_nothing_begins_anew(name: str) -> None:
    rule, fresh = make_rule(name, {}), make_rule(name, {})
    run(rule, scalar(0.3))
    rule.load_state_dict({})
    assert run(rule, scalar(0.1)) == run(fresh, scalar(0.1))


def test_three_rounds_of_adam_yogi_and_momentum_by_the_formulas() -> None:
    changes, adam, yogi, momentum = (0.1, -0.4, 0.02), FedAdam(), FedYogi(), FedAvgM()
    m = va = vy = p = 0.0
    for d in changes:
        m, p = 0.9 * m + 0.1 * d, 0.9 * p + d
        va, vy = 0.99 * va + 0.01 * d * d, vy - 0.01 * d * d * math.copysign(1, vy - d * d)
        for rule, step in (
            (adam, 0.01 * m / (va**0.5 + 1e-3)),
            (yogi, 0.01 * m / (vy**0.5 + 1e-3)),
            (momentum, p),
        ):
            assert run(rule, scalar(d), start=5.0) == pytest.approx(5.0 + step)


def test_running_statistics_and_counters_are_averaged_not_stepped() -> None:
    rule = FedAdam()
    state = {
        "bn.running_mean": torch.zeros(1),
        "bn.num_batches_tracked": torch.tensor(7),
        "w": torch.zeros(1),
    }
    rule.begin(state)
    delta = {"bn.running_mean": torch.ones(1), "bn.num_batches_tracked": torch.tensor(3), "w": torch.ones(1)}
    rule.add("a", Update(delta=delta, examples=4))
    new = rule.finish()
    assert (new["bn.running_mean"].item(), new["bn.num_batches_tracked"].item()) == (1.0, 10)
    assert list(rule.state_dict()["m"]) == ["w"]


# ---- weights and settings ----------------------------------------------------------------------------------


def test_tokens_weigh_and_are_bounded_by_examples() -> None:
    rule = WeightedMean(weighting="tokens", most_tokens=50)
    assert run(rule, scalar(0.0, 10, tokens=100), scalar(1.0, 10, tokens=300)) == pytest.approx(0.75)
    for tokens in ({}, {"tokens": 501.0}, {"tokens": 0.0}, {"tokens": math.nan}):
        with pytest.raises(UpdateError, match=r"'tokens' of 's0' is .* needs 1 to 500"):
            run(rule, scalar(0.0, 10, **tokens))


def test_counters_are_rounded_not_cut() -> None:
    rule = WeightedMean(weighting="uniform")
    rule.begin({"n": torch.tensor(2**25 + 1)})
    for site, n in (("a", 2), ("b", 3), ("c", 3)):
        rule.add(site, Update(delta={"n": torch.tensor(n)}, examples=1))
    assert rule.finish()["n"].item() == 2**25 + 4


def test_the_rule_of_the_document_weighs_by_loss_and_refuses_a_bad_one() -> None:
    assert run(documented_rule(), scalar(0.0, 10, loss=1.0), scalar(1.0, 10, loss=3.0)) == pytest.approx(0.75)
    assert run(documented_rule(q=0.0), scalar(0.0, 10, loss=1.0), scalar(1.0, 30, loss=9.0)) == pytest.approx(
        0.75
    )
    with pytest.raises(UpdateError, match="training loss -1"):
        run(documented_rule(), scalar(0.0))
    with pytest.raises(ValueError, match="q is -1"):
        documented_rule(q=-1)


# ---- clip of the norm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weighted_mean", "l_fedavg"])
def test_an_update_of_minus_ten_times_its_length_counts_as_one_site(name: str) -> None:
    """Norms 1, 2, 3, 40 of four sites with equal weights: the lower median is 2."""
    sites = [scalar(value, 10, val_loss=1.0) for value in (1.0, 2.0, 3.0, -40.0)]
    rule = make_rule(name, {"norm_clip": "median"})
    assert run(rule, *sites) == pytest.approx((1 + 2 + 2 - 2) / 4)
    clipped = rule.report()["clipped"]
    assert clipped["norm"] == 2.0
    assert list(clipped["factors"].values()) == pytest.approx([2 / 3, 1 / 20])
    assert rule.facts.needs == "individual", "no mask can hide what is to be clipped"
    assert not rule.facts.streams
    assert make_rule(name, {}).facts.streams


def test_products_of_factors_are_not_clipped() -> None:
    with pytest.raises(ValueError, match="products of factors are not clipped"):
        make_rule("uniform_selection", {"norm_clip": "median", "mode": "product_restart"})
    with pytest.raises(ValueError, match="norm_clip"):
        make_rule("lora_stack", {"norm_clip": "median"})
