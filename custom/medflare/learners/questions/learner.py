# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice question answering at one site, by a language model with LoRA (DDCS, Tasks).

It learns the right option's text after the question, or its letter, and answers with the likeliest option.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SharedRecords
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Question
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.question_metrics import quick_question_metrics
from medflare.learners.questions.settings import METHOD, QuestionSettings
from medflare.learners.text_task.learner import TextTaskLearner, text_model
from medflare.learners.text_task.validation_texts import Known, digest_of, load_shared_texts
from medflare.models.text_model import Sequenced, TextModel
from medflare.tasks.questions.answerer import Answerer
from medflare.tasks.questions.evaluation import answer_questions, score_questions


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> QuestionLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    model = text_model(chosen, site, seed, METHOD.task)
    cohort = load_cohort(site)
    shared = load_shared_texts(site, cohort, known)
    return QuestionLearner(site.name, cohort, model, chosen, seed, shared)


def known(cohort: Cohort) -> list[Known]:
    """By what a question of the shared validation data is recognised among a site's own."""
    return [Known(q.question_id, q.split, f"{q.text} {q.answer_text}") for q in cohort.questions]


class QuestionLearner(TextTaskLearner[QuestionSettings]):
    """Multiple-choice question answering at one site.

    Args:
        validation: D_v, the questions every site has, for `influence` in client mode (ML-15).
    """

    FILE = "question_answering"
    EXPORTED = frozenset({"lora", "peft", "scoring", "per_token", "max_tokens"})

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        model: TextModel,
        settings: QuestionSettings,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        super().__init__(site, cohort, model, settings, seed)
        self.answerer = Answerer(
            model, settings.scoring, settings.per_token, settings.max_tokens, settings.eval_batch
        )
        train, cut = self.answerer.rows(self.questions("train"))
        val, cut_too = self.answerer.rows(self.questions("val"))
        self.learn_from(train, val)
        self.lost = cut + cut_too
        self.validation = [] if validation is None else validation.questions
        self.shared_rows, _ = self.answerer.rows(self.validation)

    def questions(self, split: str) -> list[Question]:
        """Return the site's questions of one split."""
        return [question for question in self.cohort.questions if question.split == split]

    def tested(self) -> int:
        return len(self.questions("test"))

    def test_rows(self) -> list[Sequenced]:
        return self.answerer.rows(self.questions("test"))[0]

    def shared_records(self) -> SharedRecords | None:
        return digest_of([[q.text, q.options, q.answer] for q in self.validation])

    def quality(self, split: str, limit: int | None) -> dict[str, float]:
        questions = self.questions(split)[: self.settings.eval_limit if limit is None else limit]
        if not questions:
            return {}
        return quick_question_metrics(answer_questions(self.answerer, questions, self.site, "generic"))

    def test(self, folder: Path, limit: int | None) -> list[EvaluationRecord]:
        tested = self.tested_adapter(folder)
        questions = self.questions("test")[:limit]
        if not questions:
            return []
        return [
            score_questions(self.answerer, questions, self.site, "participant", tested, folder, self.seed)
        ]
