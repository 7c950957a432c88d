# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA and Fed-MedLoRA+ at one site: clinical information extraction by a language model with LoRA.

Paper: Fed-MedLoRA; resolutions ML-1 to ML-15. The two differ at the server (rule
`influence`) and, in its client mode, by the factor that `fit` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SharedRecords
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.rows import rows_of
from medflare.learners.extraction.settings import METHOD, ExtractionSettings
from medflare.learners.extraction.validation_notes import digest, load_shared_notes
from medflare.learners.text_task.learner import TextTaskLearner, text_model
from medflare.learners.text_task.shared_adapter import ADAPTER_PREFIX
from medflare.models.text_model import Sequenced, TextModel
from medflare.tasks.extraction.evaluation import curve_metrics, finish_site
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.prompts import wording

__all__ = ["ADAPTER_PREFIX", "PAPER", "ExtractionLearner", "build"]


PAPER = {
    "configuration": "Llama-3.1-8B in NF4, LoRA of rank 16 on all seven projections",
    "adapter": 41_943_040,
    "total": 41_943_040,
    "bytes_fp32_per_direction": 167_772_160,
}
"""The paper's communicated parameters, which tests/unit/models/test_parameter_counts.py counts again."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> ExtractionLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    model = text_model(chosen, site, seed, METHOD.task)
    cohort = load_cohort(site)
    return ExtractionLearner(site.name, cohort, model, chosen, seed, load_shared_notes(site, cohort))


class ExtractionLearner(TextTaskLearner[ExtractionSettings]):
    """Fed-MedLoRA at one site.

    Args:
        validation: D_v, the notes every site has, for `influence` in client mode (ML-15).
    """

    FILE = "extraction"
    EXPORTED = frozenset({"lora", "peft", "format", "sentences", "max_tokens"})
    PAPER = PAPER

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        model: TextModel,
        settings: ExtractionSettings,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        super().__init__(site, cohort, model, settings, seed)
        self.extractor = Extractor(
            model,
            wording(model.backbone.extraction, settings.format),
            settings.sentences,
            settings.max_tokens,
            settings.eval_batch,
        )
        train, lost = rows_of(self.extractor, self.notes("train"), self.longest)
        val, lost_too = rows_of(self.extractor, self.notes("val"), self.longest)
        self.learn_from(train, val)
        self.lost = lost + lost_too
        self.validation = [] if validation is None else validation.notes
        self.shared_rows, _ = rows_of(self.extractor, self.validation, self.longest)

    def notes(self, split: str) -> list[Note]:
        """Return the site's notes of one split."""
        return [note for note in self.cohort.notes if note.split == split]

    def tested(self) -> int:
        return len(self.notes("test"))

    def test_rows(self) -> list[Sequenced]:
        return rows_of(self.extractor, self.notes("test"), self.longest)[0]

    def shared_records(self) -> SharedRecords | None:
        return digest(self.validation)

    def quality(self, split: str, limit: int | None) -> dict[str, float]:
        return curve_metrics(self, self.notes(split)[: self.settings.eval_limit if limit is None else limit])

    def test(self, folder: Path, limit: int | None) -> list[EvaluationRecord]:
        return finish_site(self, folder, limit)
