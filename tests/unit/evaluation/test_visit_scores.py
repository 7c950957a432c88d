# SPDX-License-Identifier: Apache-2.0
"""Means over visits as statistics, and tests that draw patients with all their visits."""

from __future__ import annotations

import numpy as np
import pytest

from medflare.evaluation import statistics as uncertainty
from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.statistics import (
    Statistic,
    bootstrap,
    mean_statistic,
    paired_difference,
    permutation_test,
)
from medflare.evaluation.visit_metrics import (
    SCORES,
    UNFOUNDED,
    averaged,
    by_visit,
    change_statistics,
    evaluate_visits,
    follow_ups,
    groups_of,
    in_visit_order,
    mean_over_visits,
    silent_first_visits,
    unfounded_statistics,
)
from medflare.labelling.labels import label_report
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import follow_up_reports


def course(site: int, patients: int = 12, visits: int = 3) -> list[Prediction]:
    """Reports whose first sentence is lost."""
    found: list[Prediction] = []
    last: Prediction | None = None
    for visit in follow_up_reports(DEMO_HOSPITALS[site], patients, visits):
        study = visit.study
        text = study.report.partition(". ")[2]
        same = last is not None and last.patient_id == study.patient_id
        last = Prediction(
            study_id=study.study_id,
            patient_id=study.patient_id,
            site=f"site-{site + 1}",
            adapter="generic",
            reference=study.report,
            generated=text,
            gold_codes=study.codes,
            predicted_codes=label_report(text),
            visit=visit.number,
            days=30.0 if same else None,
            before_codes=last.gold_codes if same and last else None,
        )
        found.append(last)
    return found


@pytest.fixture(scope="module")
def items() -> list[Prediction]:
    return course(0)


def test_the_mean_of_parts_is_the_mean_of_their_values() -> None:
    parts = [mean_statistic([1.0, 0.0]), mean_statistic([0.25])]
    assert averaged(parts).value == pytest.approx((0.5 + 0.25) / 2)
    assert len(averaged(parts)) == 3
    assert averaged([averaged(parts), mean_statistic([1.0])]).value == pytest.approx((0.375 + 1) / 2)


def test_a_part_that_a_resample_misses_is_left_out_of_its_mean() -> None:
    both = averaged([mean_statistic([1.0, 0.0]), mean_statistic([0.25])])
    only_first = np.array([2.0, 0.0, 0.0])
    assert float(both.score(only_first @ both.sums)) == pytest.approx(1.0)


def test_the_mean_over_visits_is_that_of_each_visits_own_score(items: list[Prediction]) -> None:
    visit_statistics = [prediction_statistics(part) for part in by_visit(items).values()]
    result = mean_over_visits(items)
    for name in SCORES:
        assert result[name].value == pytest.approx(np.mean([one[name].value for one in visit_statistics])), (
            name
        )


def test_intervals_draw_patients_with_all_their_visits(
    items: list[Prediction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast way equals drawing patients by hand."""
    monkeypatch.setattr(uncertainty, "SMALL", 0)  # the percentile interval, as of many patients
    statistic = mean_over_visits(items, ["label_f1"])["label_f1"]
    rows, groups = in_visit_order(items), groups_of(in_visit_order(items))
    people = list(dict.fromkeys(groups))
    picks = np.random.default_rng(3).integers(len(people), size=(50, len(people)))
    slow = []
    for drawn in picks:
        taken = [i for who in drawn for i in range(len(rows)) if groups[i] == people[who]]
        slow.append(Statistic(statistic.sums[taken], statistic.score).value)
    estimate = bootstrap({"x": statistic}, groups=groups, replicates=50, seed=3)["x"]
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


def test_names_and_values_of_a_site(items: list[Prediction]) -> None:
    evaluation = evaluate_visits(items, replicates=50)
    numbers = sorted(by_visit(items))
    assert {f"visit_{t}/{name}" for t in numbers for name in SCORES} <= evaluation.keys()
    assert {f"visits/{name}" for name in SCORES} <= evaluation.keys()
    assert {"change_f1", "change_moved_f1", "change_opposite", "visit_2/change_f1"} <= evaluation.keys()
    assert evaluation["change_f1"].value == pytest.approx(change_statistics(items)["change_f1"].value)


def test_no_visit_has_scores_where_one_has_too_few_reports(items: list[Prediction]) -> None:
    """Scores of all reports and of the other visits would tell its own, and so would the mean over visits."""
    sizes = {number: len(reports) for number, reports in by_visit(items).items()}
    least = min(sizes.values())
    whole = evaluate_visits(items, fewest=least, replicates=20)
    assert {f"visit_{number}/bleu_4" for number in sizes} | {"visits/bleu_4"} <= whole.keys()
    held = evaluate_visits(items, fewest=least + 1, replicates=20)
    assert not [name for name in held if name.startswith(("visit_", "visits/"))]
    assert held["change_f1"] == whole["change_f1"], "is of more reports than one visit has"


def test_changes_of_too_few_reports_are_not_told(items: list[Prediction]) -> None:
    first, later = len(silent_first_visits(items)), len(follow_ups(items))
    told = evaluate_visits(items, fewest=min(first, later), replicates=20)
    assert {"change_f1", UNFOUNDED} <= told.keys()
    few = follow_ups(items)[:3]
    everything = [*by_visit(items)[1], *few]
    found = evaluate_visits(everything, fewest=4, replicates=20)
    assert UNFOUNDED in found
    assert not [name for name in found if name.startswith("change")]
    assert evaluate_visits(items, fewest=len(items) + 1, replicates=20) == {}


def test_first_visits_alone_have_no_changes(items: list[Prediction]) -> None:
    first = by_visit(items)[1]
    assert follow_ups(first) == []
    assert not any(name.startswith("change") for name in evaluate_visits(first, replicates=20))


def test_first_visits_whose_report_compares_are_counted(items: list[Prediction]) -> None:
    """Where the reference compares too, there was a study before that the site does not have."""
    change = "The pleural effusion has increased since the prior study."
    first = [item.model_copy(update={"generated": item.reference}) for item in by_visit(items)[1]]
    assert evaluate_visits(first, replicates=20)[UNFOUNDED].value == 0
    first[0] = first[0].model_copy(update={"generated": change})
    first[1] = first[1].model_copy(update={"generated": change, "reference": change})
    later = [item.model_copy(update={"generated": change}) for item in follow_ups(items)]
    found = evaluate_visits([*first, *later], replicates=20)[UNFOUNDED]
    assert found.value == pytest.approx(1 / (len(first) - 1))
    assert unfounded_statistics(later) == {}


def test_a_report_of_no_visit_is_refused(items: list[Prediction]) -> None:
    lone = items[0].model_copy(update={"visit": None})
    with pytest.raises(ValueError, match=rf"study '{lone.study_id}' has no visit number"):
        by_visit([lone])


def test_patients_of_two_sites_are_not_one_group(items: list[Prediction]) -> None:
    twin = items[0].model_copy(update={"site": "site-2"})
    assert len(set(groups_of([items[0], twin]))) == 2


# ---- paired tests ------------------------------------------------------------------------------------------


def test_equal_systems_are_not_told_apart() -> None:
    same = mean_statistic(np.arange(20.0))
    assert paired_difference(same, same).p == 1
    assert permutation_test(same, same) == 1


def test_a_patient_with_many_visits_counts_as_one_in_the_tests() -> None:
    """Nine visits of one patient that are all better are no evidence of nine patients."""
    better = mean_statistic([1.0] * 9)
    worse = mean_statistic([0.0] * 9)
    assert permutation_test(better, worse, groups=["P"] * 9) == 1
    assert permutation_test(better, worse) < 0.02


def test_the_tests_of_means_over_visits_and_sites(items: list[Prediction]) -> None:
    """A system that writes the reference wins everywhere, over sites and visits."""
    sites = [items, course(1)]
    perfect = [[i.model_copy(update={"generated": i.reference}) for i in own] for own in sites]
    groups = [name for own in sites for name in groups_of(in_visit_order(own))]
    ours, theirs = (
        averaged([mean_over_visits(own, ["rouge_l"])["rouge_l"] for own in system])
        for system in (perfect, sites)
    )
    difference = paired_difference(ours, theirs, groups=groups, replicates=500)
    assert ours.value == pytest.approx(1)
    assert difference.low > 0
    assert difference.p < 0.01
    assert permutation_test(ours, theirs, groups=groups, replicates=500) < 0.01
