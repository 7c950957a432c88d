# SPDX-License-Identifier: Apache-2.0
"""How a site scores its own answers to questions, during a run and after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medflare.core.json_lines import write_lines
from medflare.core.run_record import EvaluationRecord
from medflare.data.load import load_cohort
from medflare.data.records import Question
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.question_metrics import AnsweredQuestion, evaluate_questions
from medflare.tasks.answer_result import load_answerer
from medflare.tasks.questions.questions import Answerer
from medflare.tasks.scoring import AdapterKind, Role, evaluation_record, kind_of, of_split, opened


def answered(
    answerer: Answerer, questions: Sequence[Question], site: str, adapter: AdapterKind
) -> list[AnsweredQuestion]:
    """Every question with its options' scores and what the model chose."""
    out = []
    for question, found in zip(questions, answerer.score(questions), strict=True):
        letters = [letter for letter, _ in question.options]
        out.append(
            AnsweredQuestion(
                question_id=question.question_id,
                site=site,
                adapter=adapter,
                question=question.text,
                options=dict(question.options),
                scores=dict(zip(letters, found.options, strict=True)),
                chosen=letters[found.chosen],
                answer=question.answer,
                group=question.group,
                cuts=found.cuts,
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
    """Answers questions, keeps the answers in a file and scores them."""
    found = answered(answerer, questions, site, adapter)
    path = write_lines(folder / f"predictions_{adapter}.jsonl", found)
    scored = evaluate_questions(found, seed=seed)
    return evaluation_record(scored, path, len(found), site, role, adapter)


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
    """Tests a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
    """
    answerer = opened(load_answerer, result, site, adapter)
    questions = of_split(load_cohort(site).questions, split, site.name, "question")
    return score_questions(answerer, questions, site.name, role, kind_of(adapter), folder, seed)
