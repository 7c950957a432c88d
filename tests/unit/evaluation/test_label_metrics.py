# SPDX-License-Identifier: Apache-2.0
"""Clinical efficacy numbers, by hand and by property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.conditions import CONDITIONS
from medflare.evaluation.label_metrics import COMPETITION, label_metrics, other_patients_statistic
from medflare.evaluation.report_metrics import evaluate_reports


def codes(*rows: dict[int, int]) -> np.ndarray:
    """Rows of 14 codes, blank but for the places given."""
    table = np.zeros((len(rows), 14), dtype=int)
    for row, places in enumerate(rows):
        for place, code in places.items():
            table[row, place] = code
    return table


def test_vector_11_gold_without_prediction_and_two_empty_sides_score_zero() -> None:
    for gold, predicted in ((codes({1: 1}), codes({})), (codes({}), codes({}))):
        metrics = label_metrics(gold, predicted)
        assert [metrics[f"label_{name}"] for name in ("precision", "recall", "f1")] == [0, 0, 0]


def control(gold: np.ndarray, predicted: np.ndarray, *whose: list[str]) -> float | None:
    found = other_patients_statistic(gold, predicted, *whose)
    return found["label_f1_other_patients"].value if found else None


def test_a_draft_is_compared_with_the_reports_of_other_patients() -> None:
    gold = codes({1: 1}, {1: 1, 2: 1}, {3: 1})
    predicted = codes({1: 1}, {3: 1}, {})
    # draft 0 with reports 1 and 2: 2/3 and 0; draft 1 with 0 and 2: 0 and 1; draft 2 states nothing
    assert control(gold, predicted, ["a", "b", "c"]) == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)
    # reports 0 and 1 are of one patient
    assert control(gold, predicted, ["a", "a", "b"]) == pytest.approx((0 + 1 + 0) / 3)
    # the third study has nobody beside it at its site, and counts nowhere
    assert control(gold, predicted, ["a", "b", "c"], ["x", "x", "y"]) == pytest.approx((2 / 3 + 0) / 2)
    assert control(gold, predicted, ["a", "a", "a"]) is None
    assert control(gold[:0], predicted[:0], []) is None


def test_the_scores_of_reports_hold_the_control() -> None:
    gold, predicted = codes({1: 1}, {3: 1}), codes({1: 1}, {1: 1})
    texts = ["cardiomegaly .", "edema ."]
    found = evaluate_reports(texts, texts, gold, predicted, groups=["a", "b"], replicates=10).estimates
    # draft 0 does not agree with report 1, draft 1 does with report 0
    assert (found["label_f1"].value, found["label_f1_other_patients"].value) == (0.5, 0.5)
    alone = evaluate_reports(texts, texts, gold, predicted, groups=["a", "a"], replicates=10).estimates
    assert "label_f1_other_patients" not in alone


@given(st.integers(0, 2**32))
def test_the_control_is_the_label_f1_of_drafts_dealt_out_at_random(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gold, predicted = (generator.integers(0, 2, (5, 14)) for _ in range(2))
    dealt = [label_metrics(gold, np.roll(predicted, by, 0))["label_f1"] for by in range(1, 5)]
    assert control(gold, predicted, list("abcde")) == pytest.approx(np.mean(dealt))


def test_reports_in_which_nothing_is_recognised_agree_with_nothing_and_are_counted() -> None:
    unknown, normal = codes({}, {}, {13: 1}, {1: 2}), codes({}, {13: 1}, {13: 1}, {})
    metrics = label_metrics(unknown, normal)
    assert metrics["label_f1"] == 1 / 4
    assert metrics["label_unrecognised"] == 2 / 4
    assert metrics["label_unrecognised_generated"] == 2 / 4


def test_example_based_by_hand() -> None:
    gold, predicted = codes({1: 1, 9: 1}, {5: 1}), codes({1: 1, 8: 1, 7: 1}, {5: 1})
    metrics = label_metrics(gold, predicted)
    assert metrics["label_precision"] == pytest.approx((1 / 3 + 1) / 2)
    assert metrics["label_recall"] == pytest.approx((1 / 2 + 1) / 2)
    assert metrics["label_f1"] == pytest.approx((2 / 5 + 1) / 2)


def test_micro_macro_and_five_by_hand() -> None:
    effusion, fracture = CONDITIONS.index("pleural effusion"), CONDITIONS.index("fracture")
    metrics = label_metrics(
        codes({effusion: 1, fracture: 1}, {effusion: 1}), codes({effusion: 1}, {fracture: 1})
    )
    assert metrics["label_micro_f1"] == pytest.approx(2 * 1 / (2 * 1 + 1 + 2))
    assert metrics["label_macro_f1"] == pytest.approx((2 / 3) / 14)
    assert metrics["label_micro5_precision"] == 1
    assert metrics["label_micro5_recall"] == pytest.approx(1 / 2)
    assert metrics["label_f1/pleural effusion"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("code", [0, 2, 3])
def test_only_code_one_is_positive(code: int) -> None:
    assert label_metrics(codes({1: 1}), codes({1: code}))["label_recall"] == 0


def test_the_five_are_conditions() -> None:
    assert set(COMPETITION) < set(CONDITIONS)


@given(
    st.lists(st.tuples(*[st.lists(st.integers(0, 3), min_size=14, max_size=14)] * 2), min_size=1, max_size=8)
)
def test_mean_f1_never_exceeds_the_mean_of_p_and_r(pairs: list[tuple[list[int], list[int]]]) -> None:
    metrics = label_metrics([g for g, _ in pairs], [s for _, s in pairs])
    assert metrics["label_f1"] <= (metrics["label_precision"] + metrics["label_recall"]) / 2 + 1e-12


def test_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, (60, 14)), rng.integers(0, 4, (60, 14))
    metrics = label_metrics(gold, predicted)
    for name, average in (("label_micro_f1", "micro"), ("label_macro_f1", "macro"), ("label_f1", "samples")):
        assert metrics[name] == pytest.approx(
            f1_score(gold == 1, predicted == 1, average=average, zero_division=0)
        )


def test_wrong_shapes_are_refused_with_both_named() -> None:
    with pytest.raises(ValueError, match=r"gold \(1, 13\) and predicted \(1, 14\)"):
        label_metrics(np.zeros((1, 13)), np.zeros((1, 14)))
