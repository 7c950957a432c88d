# SPDX-License-Identifier: Apache-2.0
"""Temporal coherence by hand, at its limits, and on the synthetic hospitals, where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.change_extraction import Changes
from medflare.evaluation.statistics import permutation_test
from medflare.evaluation.temporal_coherence import (
    COHERENCE,
    changes_that_happened,
    coherence_statistics,
    evaluate_coherence,
    other_patients_coherence,
)
from medflare.synthetic import DEMO_HOSPITALS, UNSEEN_HOSPITAL, pretraining_hospitals
from medflare.synthetic.follow_up import FollowUp, follow_up_reports
from medflare.synthetic.profiles import HospitalProfile

ALL = (*DEMO_HOSPITALS, UNSEEN_HOSPITAL, *pretraining_hospitals(6))
EFFUSION, EDEMA = CONDITIONS.index("pleural effusion"), CONDITIONS.index("edema")
WORD = {"increased": "worse", "decreased": "better"}

WORSE = "The pleural effusion has increased since the prior study."
BETTER = "The pleural effusion has decreased since the prior study."
STABLE = "The pleural effusion is unchanged."
NEW_EDEMA = "New pulmonary edema."


def scores(references: list[str], generated: list[str]) -> dict[str, float]:
    statistics = coherence_statistics(changes_that_happened(references), generated)
    return {name: item.value for name, item in statistics.items()}


def truth(visit: FollowUp) -> Changes:
    pairs = {(CONDITIONS.index(condition), WORD.get(change, change)) for condition, change in visit.changes}
    return frozenset(pairs)  # type: ignore[arg-type]


def later(profile: HospitalProfile, patients: int = 40) -> list[FollowUp]:
    return [visit for visit in follow_up_reports(profile, patients, 4) if visit.number > 1]


def test_by_hand() -> None:
    result = scores([f"{WORSE} {NEW_EDEMA}", STABLE, BETTER], [WORSE, f"{STABLE} {NEW_EDEMA}", WORSE])
    # happened: worse, new; unchanged; better. Said: worse; unchanged, new; worse. Right: 2.
    assert result["change_precision"] == pytest.approx(2 / 4)
    assert result["change_recall"] == pytest.approx(2 / 4)
    assert result["change_f1"] == pytest.approx(1 / 2)
    assert result["change_moved_precision"] == pytest.approx(1 / 3)
    assert result["change_moved_recall"] == pytest.approx(1 / 3)
    assert result["change_f1/worse"] == pytest.approx(2 / 3)
    assert result["change_f1/unchanged"] == 1
    assert result["change_f1/new"] == result["change_f1/better"] == result["change_f1/resolved"] == 0
    assert result["change_macro_f1"] == pytest.approx((2 / 3 + 1) / 5)
    assert result["change_opposite"] == pytest.approx(1 / 3)


def test_the_change_alone_is_judged_where_both_state_one() -> None:
    result = scores(
        [f"{WORSE} {NEW_EDEMA}", STABLE, BETTER, WORSE], [WORSE, NEW_EDEMA, WORSE, f"{WORSE} {NEW_EDEMA}"]
    )
    # effusion of visits 1, 3 and 4: worse, better, worse; all three are called worse
    assert result["change_accuracy"] == pytest.approx(2 / 3)
    assert result["change_accuracy_commonest"] == pytest.approx(2 / 3)
    assert scores([STABLE], [NEW_EDEMA])["change_accuracy"] == 0


def control(generated: list[str], patients: list[str], strata: list[int]) -> float | None:
    happened = changes_that_happened([WORSE, BETTER, f"{WORSE} {NEW_EDEMA}"])
    found = other_patients_coherence(happened, generated, patients, strata)
    return found["change_f1_other_patients"].value if found else None


def test_a_draft_is_compared_with_the_changes_of_other_patients() -> None:
    drafts = [WORSE, WORSE, NEW_EDEMA]
    # draft 1 with visits 2, 3: half right of 1 said and 1.5 happened; draft 2 with 1, 3: right, of 1 and 1.5;
    # draft 3 with 1, 2: wrong, of 1 and 1
    assert control(drafts, ["a", "b", "c"], [1, 1, 1]) == pytest.approx(2 * 1.5 / (3 + 4))
    # visits of another number or of the same patient are left out: draft 1 with 2 alone, draft 2 with 1
    assert control(drafts, ["a", "b", "c"], [1, 1, 2]) == pytest.approx(2 * 1 / (2 + 2))
    assert control(drafts, ["a", "a", "b"], [1, 1, 1]) == pytest.approx(2 * (1 + 1 + 0) / (3 + 2 + 2 + 1))
    assert control(drafts, ["a", "a", "a"], [1, 1, 1]) is None
    assert control(drafts, ["a", "b", "c"], [1, 2, 3]) is None


def test_the_control_of_drafts_that_were_dealt_out_equals_their_f1() -> None:
    visits = later(DEMO_HOSPITALS[0])
    texts, patients = [visit.study.report for visit in visits], [visit.study.patient_id for visit in visits]
    happened = changes_that_happened(texts)
    found = other_patients_coherence(happened, texts, patients, [visit.number for visit in visits])
    assert 0 < found["change_f1_other_patients"].value < 0.3
    own = coherence_statistics(happened, texts)
    assert own["change_f1"].value == own["change_accuracy"].value == 1


def test_the_reference_itself_is_coherent_and_a_report_without_changes_is_not() -> None:
    references = [WORSE, NEW_EDEMA, f"{STABLE} {NEW_EDEMA}"]
    assert scores(references, references)["change_f1"] == 1
    silent = scores(references, ["Pleural effusion.", "Pulmonary edema.", ""])
    assert silent["change_f1"] == silent["change_opposite"] == 0


def test_the_right_finding_with_the_wrong_change_is_wrong() -> None:
    assert scores([WORSE], [STABLE])["change_f1"] == 0
    assert scores([WORSE], [STABLE])["change_opposite"] == 0
    assert scores([WORSE], [BETTER])["change_opposite"] == 1
    assert scores([BETTER], ["New pleural effusion."])["change_opposite"] == 1


def test_labels_speak_where_the_reference_is_silent_and_only_there() -> None:
    before, now = np.zeros((1, 14), int), np.zeros((1, 14), int)
    before[0, EDEMA] = Code.POSITIVE
    now[0, EFFUSION] = Code.POSITIVE
    assert changes_that_happened([WORSE], before, now) == [{(EFFUSION, "worse"), (EDEMA, "resolved")}]
    assert changes_that_happened(["Small effusion."], before, now) == [
        {(EFFUSION, "new"), (EDEMA, "resolved")}
    ]
    assert changes_that_happened(["Small effusion."]) == [frozenset()]
    with pytest.raises(ValueError, match=r"Codes must be \(1, 14\) for both visits; found \(1, 14\) before"):
        changes_that_happened([WORSE], before, now[:, :13])


def test_as_many_reports_as_visits() -> None:
    with pytest.raises(ValueError, match="Found 1 visits and 2 generated reports"):
        coherence_statistics([frozenset()], ["", ""])


def test_intervals_hold_the_value_and_need_a_visit() -> None:
    references = [WORSE, BETTER, STABLE, NEW_EDEMA] * 5
    generated = [WORSE, STABLE, STABLE, WORSE] * 5
    patients = [f"p{i // 3}" for i in range(20)]
    evaluation = evaluate_coherence(references, generated, groups=patients, replicates=200)
    assert len(evaluation) == len(COHERENCE)
    assert all(item.low <= item.value <= item.high for item in evaluation.values())
    assert evaluation["change_f1"].low < evaluation["change_f1"].high
    assert evaluate_coherence([], []) == {}


def test_no_change_at_all_is_zero_and_not_undefined() -> None:
    assert set(scores(["Clear lungs."], ["Clear lungs."]).values()) == {0.0}


@pytest.mark.parametrize("profile", ALL, ids=[profile.name for profile in ALL])
def test_the_extractor_reads_what_the_generator_changed(profile: HospitalProfile) -> None:
    """Development numbers: the rules were written while looking at these styles."""
    visits = later(profile)
    statistics = coherence_statistics(
        [truth(visit) for visit in visits], [visit.study.report for visit in visits]
    )
    assert statistics["change_f1"].value > 0.97
    assert statistics["change_opposite"].value < 0.01


def test_other_words_for_the_same_change_count_and_shuffled_reports_do_not() -> None:
    """Reports of one hospital against the same visits in another house style, then against a wrong order."""
    from medflare.synthetic.patients import stream
    from medflare.synthetic.progression import PROGRESSIONS, follow
    from medflare.synthetic.styles.reports import write_report

    one, other = DEMO_HOSPITALS[0], DEMO_HOSPITALS[1]
    pairs = [
        [write_report(visit.findings, house.style, stream(1, k, "wording", n))[0] for house in (one, other)]
        for k, course in enumerate(follow(one, PROGRESSIONS[one.name], 40, 3))
        for n, visit in enumerate(course.patient.visits[1:])
    ]
    references, restyled = ([pair[i] for pair in pairs] for i in (0, 1))
    happened = changes_that_happened(references)
    right = coherence_statistics(happened, restyled)
    wrong = coherence_statistics(happened, restyled[1:] + restyled[:1])
    assert right["change_f1"].value > 0.95
    assert wrong["change_f1"].value < 0.5
    assert permutation_test(right["change_f1"], wrong["change_f1"], replicates=200) < 0.01
