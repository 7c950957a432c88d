# SPDX-License-Identifier: Apache-2.0
"""Scores answers to the questions of a site, during a run and after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medflare.core.json_lines import write_lines
from medflare.core.run_record import EvaluationRecord
from medflare.data.load import load_cohort
from medflare.data.records import Question
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.question_metrics import AnsweredQuestion, evaluate_questions
from medflare.tasks.questions.answerer import Answerer
from medflare.tasks.questions.answerer_folder import load_answerer
from medflare.tasks.scoring import (
    AdapterKind,
    Role,
    adapter_kind,
    evaluation_record,
    open_on_site,
    records_of_split,
)


def answer_questions(
    answerer: Answerer, questions: Sequence[Question], site: str, adapter: AdapterKind
) -> list[AnsweredQuestion]:
    """Return every question with its options' scores and the option that the model chose."""
    out = []
    for question, scores in zip(questions, answerer.score(questions), strict=True):
        letters = [letter for letter, _ in question.options]
        out.append(
            AnsweredQuestion(
                question_id=question.question_id,
                site=site,
                adapter=adapter,
                question=question.text,
                options=dict(question.options),
                scores=dict(zip(letters, scores.options, strict=True)),
                chosen=letters[scores.chosen],
                answer=question.answer,
                group=question.group,
                cuts=scores.cuts,
            )
        )
    return out


def score_questions(
    answerer: Answerer,
    questions: Sequence[Question],
    site: str,
    role: Role,
    adapter: AdapterKind,
    folder: Path,
    seed: int = 0,
) -> EvaluationRecord:
    """Answer questions, write the answers to a file and score them."""
    answers = answer_questions(answerer, questions, site, adapter)
    path = write_lines(folder / f"predictions_{adapter}.jsonl", answers)
    scored = evaluate_questions(answers, seed=seed)
    return evaluation_record(scored, path, len(answers), site, role, adapter)


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Role,
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
) -> EvaluationRecord:
    """Score a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
    """
    answerer = open_on_site(load_answerer, result, site, adapter)
    questions = records_of_split(load_cohort(site).questions, split, site.name, "question")
    return score_questions(answerer, questions, site.name, role, adapter_kind(adapter), folder, seed)
