# SPDX-License-Identifier: Apache-2.0
"""Bootstrap, paired tests and seeds: coverage, identities, speed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from medflare.evaluation.label_metrics import label_statistics
from medflare.evaluation.report_metrics import report_statistics
from medflare.evaluation.statistics import (
    Statistic,
    bootstrap,
    mean_statistic,
    over_seeds,
    paired_difference,
    permutation_test,
    pooled,
)

WORDS = np.array(["the", "heart", "lungs", "are", "is", "clear", "enlarged", "no", "left", "right"])


def corpus(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Random reports of 16 words and copies with three words in ten replaced."""
    rng = np.random.default_rng(seed)
    gold, other = rng.choice(WORDS, (2, count, 16))
    predicted = np.where(rng.random(gold.shape) < 0.7, gold, other)
    return [" ".join(row) for row in gold], [" ".join(row) for row in predicted]


def test_intervals_cover_the_truth_about_as_often_as_they_promise() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        estimate = bootstrap({"x": mean_statistic(rng.normal(0.3, 1, 60))}, replicates=400, seed=trial)["x"]
        hits += estimate.low <= 0.3 <= estimate.high
    assert 0.90 <= hits / 300 <= 0.98


def test_interval_of_a_mean_matches_the_normal_one() -> None:
    values = np.random.default_rng(2).normal(0, 1, 400)
    estimate = bootstrap({"x": mean_statistic(values)}, replicates=4000)["x"]
    half = 1.96 * values.std() / 20
    assert estimate.value == pytest.approx(values.mean())
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half, rel=0.06)


def test_fast_path_equals_an_obviously_right_loop() -> None:
    item = report_statistics(*corpus(60, 0))["bleu_4"]
    rng = np.random.default_rng(5)
    picks = rng.integers(60, size=(200, 60))
    slow = [Statistic(item.sums[rows], item.score).value for rows in picks]
    estimate = bootstrap({"x": item}, replicates=200, seed=5)["x"]
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


def test_a_thousand_replicates_of_all_metrics_on_500_studies_are_quick() -> None:
    rng = np.random.default_rng(0)
    statistics = report_statistics(*corpus(500, 0))
    statistics |= label_statistics(rng.integers(0, 4, (500, 14)), rng.integers(0, 4, (500, 14)))
    started = time.process_time()
    bootstrap(statistics, replicates=1000)
    assert time.process_time() - started < 10  # 0.03 s where it was written


def test_the_same_seed_gives_the_same_interval() -> None:
    item = {"x": mean_statistic(np.arange(20.0))}
    assert bootstrap(item, seed=3) == bootstrap(item, seed=3)
    assert bootstrap(item, seed=3) != bootstrap(item, seed=4)


def test_identical_systems_differ_by_zero_with_p_one() -> None:
    item = report_statistics(*corpus(30, 0))["bleu_4"]
    difference = paired_difference(item, item)
    assert (difference.value, difference.low, difference.high, difference.p) == (0, 0, 0, 1)
    assert permutation_test(item, item) == 1


def test_a_clear_difference_is_found_and_pairing_is_what_finds_it() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 5, 100)
    ours, theirs = mean_statistic(hard + 0.5 + rng.normal(0, 0.5, 100)), mean_statistic(hard)
    difference = paired_difference(ours, theirs)
    assert difference.low > 0
    assert difference.p < 0.01
    assert permutation_test(ours, theirs) < 0.01
    alone = bootstrap({"ours": ours, "theirs": theirs})
    assert alone["ours"].low < alone["theirs"].high


def test_p_values_of_equal_systems_are_not_small_too_often() -> None:
    rng = np.random.default_rng(3)
    pairs = [(mean_statistic(rng.normal(size=40)), mean_statistic(rng.normal(size=40))) for _ in range(200)]
    assert np.mean([permutation_test(a, b) < 0.05 for a, b in pairs]) <= 0.10


@pytest.mark.parametrize("studies", [1, 2, 3, 5, 8])
def test_few_studies_make_no_difference_of_equal_systems_certain(studies: int) -> None:
    """Resamples of two studies lie near to each other: a bootstrap gave p = 0.001 in half of such pairs."""
    rng = np.random.default_rng(studies)
    pairs = [
        (mean_statistic(rng.normal(size=studies)), mean_statistic(rng.normal(size=studies)))
        for _ in range(200)
    ]
    found = [paired_difference(a, b, replicates=300) for a, b in pairs]
    assert np.mean([difference.p < 0.05 for difference in found]) <= 0.09
    assert {difference.low is None for difference in found} == {studies == 1}


def test_one_study_or_patient_has_no_interval_unless_seeds_give_one() -> None:
    one, two = mean_statistic([0.5]), mean_statistic([0.5, 1.0])
    assert bootstrap({"x": one})["x"].interval is None
    assert bootstrap({"x": two}, groups=["p", "p"])["x"].interval is None
    assert bootstrap({"x": two}, groups=["p", "q"])["x"].interval is not None
    assert over_seeds([one]).interval is None
    assert over_seeds([one, mean_statistic([0.7])]).interval == (0.5, 0.7)
    assert paired_difference(two, two, groups=["p", "p"]).low is None


def test_patients_with_several_studies_widen_the_interval() -> None:
    values = np.repeat(np.random.default_rng(0).normal(size=50), 6)
    patients = [f"p{i // 6}" for i in range(300)]
    single = bootstrap({"x": mean_statistic(values)})["x"]
    grouped = bootstrap({"x": mean_statistic(values)}, groups=patients)["x"]
    ratio = (grouped.high - grouped.low) / (single.high - single.low)
    assert grouped.value == pytest.approx(single.value)
    assert ratio == pytest.approx(6**0.5, rel=0.15)


def test_one_seed_over_seeds_is_the_plain_bootstrap() -> None:
    item = mean_statistic(np.random.default_rng(0).normal(size=80))
    assert over_seeds([item]) == bootstrap({"x": item})["x"]


def test_seeds_that_disagree_widen_the_interval() -> None:
    values = np.random.default_rng(0).normal(size=200)
    alike = over_seeds([mean_statistic(values)] * 3)
    apart = over_seeds([mean_statistic(values + shift) for shift in (-1, 0, 1)])
    assert apart.value == pytest.approx(alike.value)
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_pooling_sites_counts_every_study_once() -> None:
    assert pooled([mean_statistic([1.0, 0.0]), mean_statistic([1.0])]).value == pytest.approx(2 / 3)


@pytest.mark.parametrize("other", [mean_statistic([1.0, 2.0]), mean_statistic([])])
def test_unpaired_systems_are_refused(other: Statistic) -> None:
    with pytest.raises(ValueError, match="studies"):
        paired_difference(mean_statistic([1.0, 2.0, 3.0]), other)


def test_group_names_must_match_studies() -> None:
    with pytest.raises(ValueError, match="2 group names for 3 studies"):
        bootstrap({"x": mean_statistic([1.0, 2.0, 3.0])}, groups=["a", "b"])
