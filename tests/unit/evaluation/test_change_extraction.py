# SPDX-License-Identifier: Apache-2.0
"""What sentences of reports say became of a finding: denials, lists, words that only look like change."""

from __future__ import annotations

import pytest

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.change_extraction import CHANGES, changes_in, changes_of_codes


def told(text: str) -> dict[str, set[str]]:
    """Condition -> changes."""
    found: dict[str, set[str]] = {}
    for condition, change in changes_in(text):
        found.setdefault(CONDITIONS[condition], set()).add(change)
    return found


EFFUSION, EDEMA, ATELECTASIS = "pleural effusion", "edema", "atelectasis"

# sentence, condition, its change or None where nothing may be read
ONE_FINDING: list[tuple[str, str, str | None]] = [
    # worse
    ("The right pleural effusion has increased since the prior study.", EFFUSION, "worse"),
    ("Interval increase in the left pleural effusion.", EFFUSION, "worse"),
    ("Increased pulmonary edema compared with the previous radiograph.", EDEMA, "worse"),
    ("Pulmonary edema has worsened.", EDEMA, "worse"),
    ("Worsening pulmonary edema.", EDEMA, "worse"),
    ("Progressive consolidation in the right lower lobe.", "consolidation", "worse"),
    ("Marked consolidation, worse.", "consolidation", "worse"),
    ("The pneumothorax is larger than before.", "pneumothorax", "worse"),
    ("Effusion, progredient in the course.", EFFUSION, "worse"),
    ("Pneumothorax is more pronounced.", "pneumothorax", "worse"),
    # better
    ("The effusion has decreased in size.", EFFUSION, "better"),
    ("Improving pulmonary edema.", EDEMA, "better"),
    ("Pulmonary edema has improved.", EDEMA, "better"),
    ("Resolving consolidation in the left base.", "consolidation", "better"),
    ("Marked resolution of the opacity.", "lung opacity", "better"),
    ("Partial resolution of the right effusion.", EFFUSION, "better"),
    ("The pneumothorax is smaller.", "pneumothorax", "better"),
    ("Interval decrease in pleural effusion.", EFFUSION, "better"),
    ("Small effusion, regressive.", EFFUSION, "better"),
    ("The effusion is less extensive.", EFFUSION, "better"),
    # new
    ("New left pleural effusion.", EFFUSION, "new"),
    ("There is a new small right apical pneumothorax.", "pneumothorax", "new"),
    ("Interval development of right lower lobe consolidation.", "consolidation", "new"),
    ("A left effusion has developed.", EFFUSION, "new"),
    ("Moderate effusion, which is new.", EFFUSION, "new"),
    ("Right rib fracture, newly appeared.", "fracture", "new"),
    ("Possible new pneumonia.", "pneumonia", "new"),
    # resolved
    ("The previously seen effusion has resolved.", EFFUSION, "resolved"),
    ("Interval resolution of pneumothorax.", "pneumothorax", "resolved"),
    ("The pneumothorax is no longer seen.", "pneumothorax", "resolved"),
    ("No residual pneumothorax.", "pneumothorax", "resolved"),
    ("Complete regression of the known effusion, resolved.", EFFUSION, "resolved"),
    ("The endotracheal tube has been removed.", "support devices", "resolved"),
    ("Interval removal of the nasogastric tube.", "support devices", "resolved"),
    ("The consolidation has cleared.", "consolidation", "resolved"),
    # unchanged
    ("Unchanged left pleural effusion.", EFFUSION, "unchanged"),
    ("Stable right basilar atelectasis.", ATELECTASIS, "unchanged"),
    ("Bibasilar atelectasis, unchanged from the prior study.", ATELECTASIS, "unchanged"),
    ("Persistent pulmonary edema.", EDEMA, "unchanged"),
    ("No significant interval change in the left effusion.", EFFUSION, "unchanged"),
    ("The effusion is similar in size.", EFFUSION, "unchanged"),
    ("Again seen is a right effusion.", EFFUSION, "unchanged"),
    ("Large right effusion (blunt angle), same.", EFFUSION, "unchanged"),
    ("Mild increase in heart size, unchanged from the prior study.", "cardiomegaly", "unchanged"),
    # denials
    ("The effusion has not increased.", EFFUSION, "unchanged"),
    ("The effusion has not significantly changed.", EFFUSION, "unchanged"),
    ("No increase in the pleural effusion since the prior study.", EFFUSION, "unchanged"),
    ("The effusion has not resolved.", EFFUSION, "unchanged"),
    ("Pulmonary edema has not improved.", EDEMA, "unchanged"),
    ("No worsening of the edema.", EDEMA, "unchanged"),
    ("No new consolidation.", "consolidation", None),
    ("No new or worsening consolidation.", "consolidation", None),
    ("There is no pleural effusion, unchanged.", EFFUSION, None),
    ("No pneumothorax.", "pneumothorax", None),
    # what only looks like change
    ("Increased opacity in the left lower lobe.", "lung opacity", None),
    ("The effusion is better seen on the lateral view.", EFFUSION, None),
    ("Left pleural effusion.", EFFUSION, None),
    ("Stable heart size.", "cardiomegaly", None),
    ("Possible wide mediastinum, interval decrease.", "enlarged cardiomediastinum", "better"),
    ("The enlarged heart is unchanged.", "cardiomegaly", "unchanged"),
    ("Follow the pneumonia to resolution.", "pneumonia", None),
    ("Chronically increased interstitial lung markings.", "lung opacity", None),
    ("Bilateral opacities, more pronounced on the right.", "lung opacity", None),
    ("Opacities more prominent in the right upper lobe.", "lung opacity", None),
    ("Mild interstitial opacities, worse in the right lung base.", "lung opacity", None),
    ("Near-complete resolution of the effusion.", EFFUSION, "better"),
    ("The effusion is on the same side.", EFFUSION, None),
    ("Hemodynamically stable patient with pleural effusion.", EFFUSION, None),
]


@pytest.mark.parametrize(("text", "condition", "change"), ONE_FINDING, ids=[row[0] for row in ONE_FINDING])
def test_one_finding(text: str, condition: str, change: str | None) -> None:
    assert told(text).get(condition, set()) == ({change} if change else set())


SEVERAL: list[tuple[str, dict[str, set[str]]]] = [
    (
        "Increased left effusion since the prior study, stable atelectasis.",
        {EFFUSION: {"worse"}, ATELECTASIS: {"unchanged"}},
    ),
    (
        "The effusion has decreased and the atelectasis is unchanged.",
        {EFFUSION: {"better"}, ATELECTASIS: {"unchanged"}},
    ),
    (
        "New small left effusion with unchanged cardiomegaly.",
        {EFFUSION: {"new"}, "cardiomegaly": {"unchanged"}},
    ),
    (
        "Pulmonary edema has improved, but the consolidation has worsened.",
        {EDEMA: {"better"}, "consolidation": {"worse"}},
    ),
    (
        "Bilateral effusions and atelectasis, increased since the prior study.",
        {EFFUSION: {"worse"}, ATELECTASIS: {"worse"}},
    ),
    ("New pleural effusion and atelectasis.", {EFFUSION: {"new"}, ATELECTASIS: {"new"}}),
    ("No pneumothorax and the pleural effusion has resolved.", {EFFUSION: {"resolved"}}),
    ("Small left effusion is new. Right effusion is unchanged.", {EFFUSION: {"new", "unchanged"}}),
    (
        "Moderate left effusion. Severe edema. No change from the prior study.",
        {EFFUSION: {"unchanged"}, EDEMA: {"unchanged"}},
    ),
    (
        "Moderate left effusion, new. Severe edema. Otherwise no change since the prior study.",
        {EFFUSION: {"new"}, EDEMA: {"unchanged"}},
    ),
    ("Comparison is made with the prior study. Small effusion.", {}),
    ("Small effusion. Stable elevation of the right hemidiaphragm compared to the exam of May.", {}),
    ("Small effusion. Interval increase in height loss of T11.", {}),
    ("Small effusion. Stable chest.", {EFFUSION: {"unchanged"}}),
    ("Radiological worsening. Bilateral effusions.", {EFFUSION: {"worse"}}),
    ("", {}),
    ("....  \n\n ;; ", {}),
]


@pytest.mark.parametrize(("text", "changes"), SEVERAL, ids=[row[0][:40] for row in SEVERAL])
def test_several_findings(text: str, changes: dict[str, set[str]]) -> None:
    assert told(text) == changes


def test_codes_of_two_visits_tell_new_and_resolved_only() -> None:
    before, now = [Code.BLANK] * 14, [Code.NEGATIVE] * 14
    edema, effusion, fracture = (CONDITIONS.index(name) for name in (EDEMA, EFFUSION, "fracture"))
    now[edema] = Code.POSITIVE
    before[effusion] = Code.POSITIVE
    before[fracture] = now[fracture] = Code.POSITIVE
    before[13] = Code.POSITIVE
    assert changes_of_codes(before, now) == {(edema, "new"), (effusion, "resolved")}
    now[effusion] = Code.UNCERTAIN
    assert changes_of_codes(before, now) == {(edema, "new")}


def test_any_text_gives_changes_of_known_kinds() -> None:
    for text in (
        "new " * 500,
        "no not never " * 100 + "effusion increased",
        "\x00\ud83d effusion, new",
        "a" * 9999,
    ):
        assert all(0 <= condition < 13 and change in CHANGES for condition, change in changes_in(text))
