# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice question answering at one site, by a language model with LoRA (DDCS, Tasks).

It learns the right option's text after the question, or its letter, and answers with the likeliest option.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.sample_drafts import offer_drafts
from medflare.data.records import Question
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.question_metrics import quick_question_metrics
from medflare.learners.questions.settings import METHOD, QuestionSettings
from medflare.learners.text_task.learner import TextTaskLearner
from medflare.learners.text_task.validation_texts import Known
from medflare.models.text_model import Sequenced
from medflare.tasks.questions.answerer import TASK, Answerer
from medflare.tasks.questions.evaluation import QUESTIONS, answer_questions


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> QuestionLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    return QuestionLearner.build(METHOD, settings, site, seed)


class QuestionLearner(TextTaskLearner[QuestionSettings, Question]):
    """Multiple-choice question answering at one site."""

    RECORDS = QUESTIONS
    predictor: Answerer
    FILE = BLOCK = TASK
    EXPORTED = frozenset({"lora", "peft", "scoring", "per_token", "max_tokens"})

    @staticmethod
    def known(record: Question) -> Known:
        return Known(record.question_id, record.split, f"{record.text} {record.answer_text}")

    @staticmethod
    def facts(record: Question) -> list[Any]:
        return [record.text, record.options, record.answer]

    def make_predictor(self) -> Answerer:
        chosen = self.settings
        return Answerer(self.model, chosen.scoring, chosen.per_token, chosen.max_tokens, chosen.eval_batch)

    def rows_of(self, records: Sequence[Question]) -> tuple[list[Sequenced], Counter[str]]:
        return self.predictor.rows(records)

    def quality(self, records: Sequence[Question]) -> dict[str, float]:
        answered = answer_questions(self.predictor, records, self.site, "generic")
        offer_drafts(
            [item.question_id for item in answered],
            [f"{item.question} {item.options[item.answer]}" for item in answered],
            [item.options[item.chosen] for item in answered],
        )
        return quick_question_metrics(answered)
