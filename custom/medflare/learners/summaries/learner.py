# SPDX-License-Identifier: Apache-2.0
"""Summarisation at one site, by a language model with LoRA: findings to impression (DDCS, Tasks)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.sample_drafts import offer_drafts
from medflare.data.records import Summary
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.summary_metrics import quick_summary_metrics
from medflare.learners.summaries.settings import METHOD, SummarySettings
from medflare.learners.text_task.learner import TextTaskLearner
from medflare.learners.text_task.validation_texts import Known
from medflare.models.text_model import Sequenced
from medflare.tasks.summaries.evaluation import SUMMARIES
from medflare.tasks.summaries.summariser import TASK, Summariser


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> SummaryLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    return SummaryLearner.build(METHOD, settings, site, seed)


class SummaryLearner(TextTaskLearner[SummarySettings, Summary]):
    """Summarisation at one site."""

    RECORDS = SUMMARIES
    predictor: Summariser
    FILE = BLOCK = TASK
    EXPORTED = frozenset({"lora", "peft", "writing", "max_tokens"})

    @staticmethod
    def known(record: Summary) -> Known:
        return Known(record.summary_id, record.split, record.source)

    @staticmethod
    def facts(record: Summary) -> list[Any]:
        return [record.source, record.target]

    def make_predictor(self) -> Summariser:
        chosen = self.settings
        return Summariser(self.model, chosen.writing, chosen.max_tokens, chosen.eval_batch)

    def rows_of(self, records: Sequence[Summary]) -> tuple[list[Sequenced], Counter[str]]:
        return self.predictor.rows(records)

    def quality(self, records: Sequence[Summary]) -> dict[str, float]:
        """Return scores of greedy summaries: a curve needs the same decoder each round, not the best one."""
        chosen = self.settings
        greedy = chosen.writing.model_copy(update={"beams": 1})
        written = Summariser(self.model, greedy, chosen.max_tokens, chosen.eval_batch).write(records)
        targets, texts = [item.target for item in records], [one.text for one in written]
        offer_drafts([item.summary_id for item in records], targets, texts)
        return quick_summary_metrics(targets, texts)
