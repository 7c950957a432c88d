# SPDX-License-Identifier: Apache-2.0
"""Summarisation at one site, by a language model with LoRA: findings to impression (DDCS, Tasks)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SharedRecords
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Summary
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.summary_metrics import quick_summary_metrics
from medflare.learners.summaries.settings import METHOD, SummarySettings
from medflare.learners.text_task.learner import TextTaskLearner, text_model
from medflare.learners.text_task.validation_texts import Known, digest_of, load_shared_texts
from medflare.models.text_model import Sequenced, TextModel
from medflare.tasks.summaries.evaluation import score_summaries
from medflare.tasks.summaries.summariser import Summariser


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> SummaryLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    model = text_model(chosen, site, seed, METHOD.task)
    cohort = load_cohort(site)
    shared = load_shared_texts(site, cohort, known)
    return SummaryLearner(site.name, cohort, model, chosen, seed, shared, site.scorers)


def known(cohort: Cohort) -> list[Known]:
    """By what a text of the shared validation data is recognised among a site's own."""
    return [Known(item.summary_id, item.split, item.source) for item in cohort.summaries]


class SummaryLearner(TextTaskLearner[SummarySettings]):
    """Summarisation at one site.

    Args:
        validation: D_v, the texts every site has, for `influence` in client mode (ML-15).
        scorers: optional scorer -> local folder of its weights, for the final test.
    """

    FILE = "summarisation"
    EXPORTED = frozenset({"lora", "peft", "writing", "max_tokens"})

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        model: TextModel,
        settings: SummarySettings,
        seed: int,
        validation: Cohort | None = None,
        scorers: Mapping[str, Path] | None = None,
    ) -> None:
        super().__init__(site, cohort, model, settings, seed)
        self.scorers = dict(scorers or {})
        self.summariser = Summariser(model, settings.writing, settings.max_tokens, settings.eval_batch)
        train, lost = self.summariser.rows(self.summaries("train"))
        val, lost_too = self.summariser.rows(self.summaries("val"))
        self.learn_from(train, val)
        self.lost = lost + lost_too
        self.validation = [] if validation is None else validation.summaries
        self.shared_rows, _ = self.summariser.rows(self.validation)

    def summaries(self, split: str) -> list[Summary]:
        """Return the site's texts of one split, with their summaries."""
        return [summary for summary in self.cohort.summaries if summary.split == split]

    def tested(self) -> int:
        return len(self.summaries("test"))

    def test_rows(self) -> list[Sequenced]:
        return self.summariser.rows(self.summaries("test"))[0]

    def shared_records(self) -> SharedRecords | None:
        return digest_of([[item.source, item.target] for item in self.validation])

    def quality(self, split: str, limit: int | None) -> dict[str, float]:
        """Greedy summaries' scores: a curve needs the same decoder each round, not the best one."""
        summaries = self.summaries(split)[: self.settings.eval_limit if limit is None else limit]
        if not summaries:
            return {}
        greedy = self.settings.writing.model_copy(update={"beams": 1})
        quick = Summariser(self.model, greedy, self.settings.max_tokens, self.settings.eval_batch)
        written = quick.write(summaries)
        return quick_summary_metrics([item.target for item in summaries], [one.text for one in written])

    def test(self, folder: Path, limit: int | None) -> list[EvaluationRecord]:
        tested = self.tested_adapter(folder)
        summaries = self.summaries("test")[:limit]
        if not summaries:
            return []
        return [
            score_summaries(
                self.summariser,
                summaries,
                self.site,
                "participant",
                tested,
                folder,
                self.seed,
                self.scorers,
            )
        ]
