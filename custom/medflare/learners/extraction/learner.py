# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA and Fed-MedLoRA+ at one site: clinical information extraction by a language model with LoRA.

Paper: Fed-MedLoRA; resolutions ML-1 to ML-15. The two differ at the server (rule `influence`) and, in its
client mode, by the factor that `fit` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.notes import LearnsFromNotes
from medflare.learners.extraction.settings import METHOD, ExtractionSettings
from medflare.learners.text_task.learner import TextTaskLearner
from medflare.models.text_model import Sequenced
from medflare.tasks.extraction.extractor import TASK, Extractor
from medflare.tasks.extraction.prompts import wording

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
    return ExtractionLearner.build(METHOD, settings, site, seed)


class ExtractionLearner(LearnsFromNotes, TextTaskLearner[ExtractionSettings, Note]):
    """Fed-MedLoRA at one site."""

    predictor: Extractor
    FILE = BLOCK = TASK
    EXPORTED = frozenset({"lora", "peft", "format", "sentences", "max_tokens", "decoding"})
    paper = PAPER

    def make_predictor(self) -> Extractor:
        chosen = self.settings
        words = wording(self.model.backbone.extraction, chosen.format)
        return Extractor(
            self.model, words, chosen.sentences, chosen.max_tokens, chosen.eval_batch, chosen.decoding
        )

    def rows_of(self, records: Sequence[Note]) -> tuple[list[Sequenced], Counter[str]]:
        """Return a row for each question about the notes, within their tasks; too long ones are counted."""
        return self.predictor.rows(records)
