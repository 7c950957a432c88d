# SPDX-License-Identifier: Apache-2.0
"""Answers to the questions of a site, and their scores."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.data.records import Question
from medflare.evaluation.question_metrics import METRICS, QUICK, AnsweredQuestion, evaluate_questions
from medflare.tasks.questions.answerer import Answerer, load_answerer
from medflare.tasks.scoring import AdapterKind, TextRecords


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


QUESTIONS = TextRecords(
    record_name="question",
    records=lambda cohort: cohort.questions,
    load=load_answerer,
    predict=answer_questions,
    evaluate=lambda answers, _, seed: evaluate_questions(answers, seed=seed),
    quick=QUICK,
    patient=lambda question: None,  # of an examination, not of a person
    metrics=METRICS,
)
score_result = QUESTIONS.score_result
