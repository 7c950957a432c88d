# SPDX-License-Identifier: Apache-2.0
"""Whether one method beats another: error rates with noise of training, Holm, and the tables of studies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from medflare.evaluation.predictions import Prediction
from medflare.evaluation.seed_tests import (
    MIN_SEEDS,
    SeedDifference,
    difference_between_seeds,
    significant,
)
from medflare.evaluation.statistics import (
    Statistic,
    bootstrap,
    holm,
    mean_statistic,
    over_seeds,
)
from method_comparison.comparison_table import Run, comparison_table, differences, interval
from method_comparison.markdown_table import Column
from method_comparison.tasks.prediction_scores import patients


def trained(rng: np.random.Generator, seeds: int, gain: float = 0.0) -> list[Statistic]:
    """A method's runs on 40 documents; noise of training is twice that of the mean over documents."""
    documents = 40
    noise = 2 / np.sqrt(documents)
    return [mean_statistic(rng.normal(gain + rng.normal(0, noise), 1, documents)) for _ in range(seeds)]


def test_five_seeds_of_equal_methods_are_called_different_as_often_as_promised() -> None:
    """Resampling documents and three seeds, as tables did before, is wrong far more often (ST-2)."""
    rng = np.random.default_rng(0)
    pairs = [(trained(rng, 5), trained(rng, 5)) for _ in range(400)]
    by_seed = [
        difference_between_seeds([a.value for a in ours], [b.value for b in theirs]).p
        for ours, theirs in pairs
    ]
    assert 0.02 <= np.mean([p < 0.05 for p in by_seed if p is not None]) <= 0.085
    by_document = []
    for ours, theirs in pairs[:150]:
        gains = [mean_statistic(a.sums[:, 0] - b.sums[:, 0]) for a, b in zip(ours, theirs, strict=True)]
        by_document.append(over_seeds(gains[:3], replicates=200))
    assert np.mean([not found.low <= 0 <= found.high for found in by_document]) > 0.12


def test_a_true_gain_is_found() -> None:
    rng = np.random.default_rng(1)
    pairs = [(trained(rng, 5, gain=1.5), trained(rng, 5)) for _ in range(100)]
    found = [
        difference_between_seeds([a.value for a in ours], [b.value for b in theirs]) for ours, theirs in pairs
    ]
    assert np.mean([item.p is not None and item.p < 0.05 for item in found]) > 0.9
    covered = [
        item.low is not None and item.high is not None and item.low <= 1.5 <= item.high for item in found
    ]
    assert 0.88 <= np.mean(covered) <= 1.0


def test_the_interval_is_students_on_the_differences() -> None:
    """By hand: differences 1, 2, 3, 4, 5; standard error 1/sqrt(2); t(4, 0.975) = 2.7764."""
    difference = difference_between_seeds([2, 4, 6, 8, 10], [1, 2, 3, 4, 5])
    assert (difference.value, difference.seeds) == (3.0, 5)
    assert (difference.low, difference.high) == pytest.approx(
        (3 - 2.7764 / 2**0.5, 3 + 2.7764 / 2**0.5), abs=1e-3
    )
    assert difference.p == pytest.approx(0.0132, abs=1e-3)


def test_one_seed_has_a_difference_and_no_test() -> None:
    difference = difference_between_seeds([0.5], [0.25])
    assert (difference.value, difference.low, difference.high, difference.p) == (0.25, None, None, None)
    assert significant({"only": difference}) == set()


def test_differences_that_are_all_the_same_have_no_spread() -> None:
    assert difference_between_seeds([1, 2, 3], [1, 2, 3]).p == 1.0
    assert difference_between_seeds([2, 3, 4], [1, 2, 3]).p == 0.0


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_seeds_must_be_the_same(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="expected one of each method for every seed"):
        difference_between_seeds(ours, theirs)


def test_holm_as_in_the_textbook() -> None:
    """Sorted .005, .01, .03, .04 times 4, 3, 2, 1, and never falling."""
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    )
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_a_star_needs_five_seeds_and_outlives_the_correction() -> None:
    def item(p: float, seeds: int = MIN_SEEDS) -> SeedDifference:
        return SeedDifference(1.0, 0.5, 1.5, p, seeds)

    assert significant({"a": item(0.001), "b": item(0.03), "c": item(0.001, MIN_SEEDS - 1)}) == {"a", "b"}
    assert significant({"a": item(0.001), "b": item(0.03), "c": item(0.04)}) == {"a"}


# ---- tables ------------------------------------------------------------------------------------------------


def runs(rng: np.random.Generator, seeds: int, gain: float) -> list[Run]:
    """Runs of 30 documents of 10 patients."""
    owners = [f"p{i // 3}" for i in range(30)]
    return [
        Run(
            {
                "f1": mean_statistic(0.5 + gain + rng.normal(0, 0.02, 30)),
                "faults": mean_statistic([0.0] * 30),
            },
            owners,
        )
        for _ in range(seeds)
    ]


COLUMNS = {"f1": Column(title="F1"), "faults": Column(title="malformed", tested=False)}


def table(systems: Mapping[str, Sequence[Run]], against: str = "ours") -> list[list[list[str]]]:
    """Return the cells of the scores' table and, where it is there, of the differences' table."""
    titles = {name: name.title() for name in systems}
    text = comparison_table(systems, titles, COLUMNS, dict.fromkeys(systems, against))
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
        for part in tables
    ]


def three(seeds: int) -> dict[str, list[Run]]:
    rng = np.random.default_rng(3)
    return {"ours": runs(rng, seeds, 0.0), "worse": runs(rng, seeds, -0.2), "same": runs(rng, seeds, 0.0)}


def test_a_table_compares_with_its_reference_and_marks_what_is_certain() -> None:
    scores, gaps = table(three(5))
    head, _, ours, worse, same = scores
    assert head == ["", "F1", "malformed"]
    assert "(" not in ours[1]
    assert worse[1].endswith("*)")
    assert re.search(r"\(-(19|20)\.\d\*\)", worse[1])
    assert "*" not in same[1]
    assert worse[2] == "0.0 [0.0, 0.0]", "not tested, so no difference"
    assert [row[0] for row in gaps] == ["", "---", "Worse − Ours", "Same − Ours"]
    assert gaps[0] == ["", "F1"], "what is not tested has no column"


def test_a_difference_has_the_t_interval_of_its_seeds() -> None:
    systems = three(5)
    value, low, high = re.findall(r"[-+]\d+\.\d", table(systems)[1][2][1])
    gap = difference_between_seeds(
        *([run.scores["f1"].value for run in systems[n]] for n in ("worse", "ours"))
    )
    assert gap.low is not None
    assert gap.high is not None
    assert [value, low, high] == [f"{100 * part:+.1f}" for part in (gap.value, gap.low, gap.high)]
    assert float(low) < float(value) < float(high) < 0


def test_three_seeds_show_the_difference_and_no_star() -> None:
    scores, gaps = table(three(3))
    assert re.search(r"\(-(19|20)\.\d\)", scores[3][1])
    assert re.match(r"-(19|20)\.\d \[-\d+\.\d, -\d+\.\d\]$", gaps[2][1])
    assert "*" not in str(scores) + str(gaps)


def test_one_seed_has_a_difference_and_no_interval() -> None:
    scores, *gaps = table(three(1))
    assert re.search(r"\(-(19|20)\.\d\)", scores[3][1])
    assert gaps == []


def test_differences_are_to_the_method_that_is_asked_for() -> None:
    gaps = table(three(5), against="worse")[1]
    assert [row[0] for row in gaps[2:]] == ["Ours − Worse", "Same − Worse"]
    assert gaps[2][1].startswith("+")


def test_a_metric_that_some_seed_lacks_is_left_out() -> None:
    rng = np.random.default_rng(0)
    systems = {"ours": runs(rng, 2, 0.0), "part": [runs(rng, 1, 0.0)[0], Run({}, [])]}
    scores, *gaps = table(systems)
    assert scores[-1] == ["Part", "-", "-"]
    assert gaps == []
    assert differences(systems, COLUMNS, {"part": "ours"}) == {}


def test_studies_of_one_patient_are_drawn_together() -> None:
    """Ten patients whose three studies are alike are ten facts, not thirty."""
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=10), 3)
    alone = [Run({"f1": mean_statistic(values)}, list(range(30)))] * 2
    grouped = [Run({"f1": mean_statistic(values)}, [i // 3 for i in range(30)])] * 2
    found = [
        interval([run.scores["f1"] for run in given], given[0].groups_of("f1")) for given in (alone, grouped)
    ]
    narrow, wide = (item.high - item.low for item in found if item.high is not None and item.low is not None)
    assert wide > 1.3 * narrow


def test_patients_of_two_sites_with_one_number_are_two() -> None:
    def study(site: str, patient: str, number: int) -> Prediction:
        codes = (0,) * 14
        return Prediction(
            study_id=f"s{number}",
            patient_id=patient,
            site=site,
            adapter="generic",
            reference="a",
            generated="b",
            gold_codes=codes,
            predicted_codes=codes,
        )

    named = patients(
        [study("a", "1", 1), study("a", "1", 2), study("b", "1", 3), study("b", "", 4), study("b", "", 5)]
    )
    assert len(set(named)) == 4


# ---- intervals of few documents ----------------------------------------------------------------------------


def test_intervals_of_eight_documents_cover_more_often_than_percentiles_do() -> None:
    """Of a skewed score, as F1 is; the percentile interval covers .86 (ST-1)."""
    rng = np.random.default_rng(5)
    exact, percentile = 0, 0
    trials = 250
    for trial in range(trials):
        values = rng.exponential(1.0, 8)
        estimate = bootstrap({"x": mean_statistic(values)}, replicates=600, seed=trial)["x"]
        exact += estimate.low <= 1.0 <= estimate.high
        picks = np.random.default_rng(trial).integers(8, size=(600, 8))
        low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
        percentile += low <= 1.0 <= high
    assert exact > percentile
    assert exact / trials >= 0.84


def test_few_documents_of_one_value_have_an_interval_of_no_width() -> None:
    estimate = bootstrap({"x": mean_statistic([0.5] * 6)})["x"]
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)
