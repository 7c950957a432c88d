# SPDX-License-Identifier: Apache-2.0
"""The commonest training text in place of every draft: scores that a model must be above to have any skill.

Half of a hospital's chest X-rays are normal and reported in the same few sentences, so overlap of words alone
says little. Of questions it is the letter that is right most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import EvaluationRecord
from medflare.data.cohort import Cohort
from medflare.data.records import Question, Study, Summary
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.question_metrics import AnsweredQuestion, evaluate_questions
from medflare.evaluation.summary_metrics import WrittenSummary, evaluate_summaries
from medflare.labelling.labels import label_report
from medflare.tasks.reports.evaluation import evaluate_predictions
from medflare.tasks.scoring import ScoredSite, Scores


class OneTextForAll(NamedTuple):
    """Records of one task, and how the commonest of them scores: (training, tested, site, seed) -> scores."""

    records: Callable[[Cohort], Sequence[Any]]
    score: Callable[[Sequence[Any], Sequence[Any], str, int], Scores]


def commonest_text(texts: Iterable[str]) -> str:
    """Return the commonest text; of several the one that comes first."""
    return Counter(texts).most_common(1)[0][0]


def _reports(training: Sequence[Study], tested: Sequence[Study], site: str, seed: int) -> Scores:
    draft = commonest_text(study.report for study in training)
    codes = label_report(draft)
    items = [
        Prediction(
            study_id=study.study_id,
            patient_id=study.patient_id,
            site=site,
            adapter="none",
            reference=study.report,
            generated=draft,
            gold_codes=study.codes or label_report(study.report),
            predicted_codes=codes,
        )
        for study in tested
    ]
    return evaluate_predictions(items, None, seed)


def _summaries(training: Sequence[Summary], tested: Sequence[Summary], site: str, seed: int) -> Scores:
    draft = commonest_text(summary.target for summary in training)
    items = [
        WrittenSummary(
            summary_id=summary.summary_id,
            patient_id=summary.patient_id,
            site=site,
            adapter="none",
            source=summary.source,
            reference=summary.target,
            generated=draft,
            group=summary.group,
            ended=True,
            cut=False,
        )
        for summary in tested
    ]
    return evaluate_summaries(items, seed=seed)


def _questions(training: Sequence[Question], tested: Sequence[Question], site: str, seed: int) -> Scores:
    ranked = [letter for letter, _ in Counter(question.answer for question in training).most_common()]
    items = []
    for question in tested:
        letters = [letter for letter, _ in question.options]
        chosen = next((letter for letter in ranked if letter in letters), letters[0])
        items.append(
            AnsweredQuestion(
                question_id=question.question_id,
                site=site,
                adapter="none",
                question=question.text,
                options=dict(question.options),
                scores={letter: float(letter == chosen) for letter in letters},
                chosen=chosen,
                answer=question.answer,
                group=question.group,
                cuts=(),
            )
        )
    return evaluate_questions(items, seed=seed)


COMMONEST: dict[str, OneTextForAll] = {
    "reports": OneTextForAll(lambda cohort: cohort.studies, _reports),
    "questions": OneTextForAll(lambda cohort: cohort.questions, _questions),
    "summaries": OneTextForAll(lambda cohort: cohort.summaries, _summaries),
}
"""Task -> its records."""


def score_commonest(cohort: Cohort, split: str, seed: int = 0) -> tuple[str, EvaluationRecord]:
    """Return the task of a cohort, and how the commonest training text of it does on a split.

    Raises:
        ConfigError: the cohort has no records of such a task, or those of several.
        DataError: it has none to learn from, or none in the split.
    """
    found = [task for task, kind in COMMONEST.items() if kind.records(cohort)]
    if len(found) != 1:
        raise ConfigError(
            f"site '{cohort.name}': tasks found with one text for all: {', '.join(found) or 'none'}. "
            f"Expected exactly one of {', '.join(COMMONEST)}."
        )
    records, score = COMMONEST[found[0]]
    parts = {name: [r for r in records(cohort) if r.split == name] for name in ("train", split)}
    if missing := [name for name, part in parts.items() if not part]:
        raise DataError(f"site '{cohort.name}': no record in the split '{missing[0]}'.")
    scores = score(parts["train"], parts[split], cohort.name, seed)
    site = ScoredSite(cohort.name, "participant", "none", Path(), seed)
    return found[0], site.record(scores, len(parts[split]), split)
