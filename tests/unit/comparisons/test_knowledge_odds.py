# SPDX-License-Identifier: Apache-2.0
"""How far knowledge graphs move the odds of DDCS: what the columns of the comparison measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medflare.data.records import Question
from method_comparison.tasks.base import Unit
from method_comparison.tasks.knowledge_odds import (
    Federation,
    KnowledgeOdds,
    OddsMethod,
    answer_distances,
    share_by_repeats,
)
from method_comparison.tasks.question_hospitals import QuestionSettings

SETTINGS = QuestionSettings(hospitals=8, questions=25, dialects=True)


def made(
    settings: QuestionSettings, partition: str, own: OddsMethod, shared: Path
) -> Unit[QuestionSettings, OddsMethod]:
    return Unit(
        method="one",
        settings=settings,
        own=own,
        partition=partition,
        seed=0,
        shared=shared,
        folder=shared / "unit",
        progress=None,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Unit[QuestionSettings, OddsMethod]:
    shared = tmp_path_factory.mktemp("shared")
    KnowledgeOdds().prepare(SETTINGS, "class", 0, shared)
    return made(SETTINGS, "class", OddsMethod(pairs_of="sites", share=0.95), shared)


def asked(answer: str) -> Question:
    return Question(
        question_id="q", text="What?", options=(("A", answer), ("B", "nothing of the kind")), answer="A"
    )


def test_distances_of_answers_do_not_mind_how_a_hospital_calls_a_thing() -> None:
    from medflare.synthetic.knowledge.hospitals import QuestionsDemo
    from medflare.synthetic.knowledge.obo import terms_of

    world = QuestionsDemo(diseases=SETTINGS.diseases, groups=SETTINGS.groups).world
    one, other = [names for kind, names in terms_of(world) if kind == "treatment" and len(names) > 1][:2]
    third = next(names for kind, names in terms_of(world) if kind == "cause")
    found = answer_distances(
        [
            [asked(one[0]), asked(other[0])],
            [asked(one[1]), asked(other[1]), asked(other[0])],
            [asked(one[0]), asked(third[0])],
        ],
        SETTINGS,
    )
    assert found == pytest.approx(np.array([[0, 0, 2 / 3], [0, 0, 2 / 3], [2 / 3, 2 / 3, 0]]))


def test_aligned_graphs_follow_the_answers_best_and_exchanged_ones_do_not(
    unit: Unit[QuestionSettings, OddsMethod],
) -> None:
    federation = Federation(unit)
    aligned, spelled, exchanged = map(federation.correlation, ("plain", "unaligned", "exchanged"))
    assert aligned > 0.9
    assert aligned > spelled + 0.02
    assert aligned > exchanged + 0.5


def test_a_unit_measures_how_far_the_odds_move(unit: Unit[QuestionSettings, OddsMethod]) -> None:
    values = KnowledgeOdds().train(unit).values
    assert 0 < values["unaligned"] <= 1
    assert 0 < values["exchanged"] <= 1
    assert values["smallest"] < 0.95
    assert "repeats" not in values


def test_graphs_tell_hospitals_with_wrong_answers_from_the_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shared = tmp_path_factory.mktemp("outliers")
    settings = SETTINGS.model_copy(update={"hospitals": 10, "spread": 0.0})
    KnowledgeOdds().prepare(settings, "outliers", 0, shared)
    own = OddsMethod(pairs_of="sites", share=0.9)
    values = KnowledgeOdds().train(made(settings, "outliers", own, shared)).values
    assert values["wrong"] < 0.6
    assert values["wrong_exchanged"] > values["wrong"] + 0.1


def test_with_equal_distances_all_of_a_lower_divergence_is_repeats() -> None:
    even = 0.6 * (1 - np.eye(4))
    d, q = np.full(4, 0.25), np.array([0.7, 0.1, 0.1, 0.1])
    assert share_by_repeats(q, d, even) == pytest.approx(1)
    apart = even.copy()
    apart[0, 1:] = apart[1:, 0] = 0.9
    assert share_by_repeats(q, d, apart) > 1
    assert share_by_repeats(d, d, even) is None
