# SPDX-License-Identifier: Apache-2.0
"""The encoder baseline of Fed-MedLoRA at one site: extraction by token classification.

It answers the language model's questions about the same windows, so federated, single-site and centralised
runs of both are comparable. All weights of the encoder learn and are communicated, where Fed-MedLoRA sends
an adapter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from medflare.core.errors import ConfigError
from medflare.data.cohort import Cohort, check_kind
from medflare.data.load import load_cohort
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.learners.client_terms.base import Shared
from medflare.learners.extraction.notes import LearnsFromNotes
from medflare.learners.optim import CosinePart
from medflare.learners.text_task.records_learner import RecordsLearner
from medflare.learners.text_task.validation_texts import load_shared_texts
from medflare.learners.token_classification.settings import METHOD, TaggerSettings
from medflare.learners.token_classification.training import train_round
from medflare.models.backbone import device_of
from medflare.models.encoder_folder import load_encoder
from medflare.models.tagger import Tagged, Tagger
from medflare.tasks.extraction.evaluation import NOTES
from medflare.tasks.extraction.predictor import training_examples
from medflare.tasks.extraction.tagging import TaggingExtractor

PAPER = {
    "configuration": "Bio_ClinicalBERT, AdamW 2e-4, 10 epochs, batch 64, 512 tokens",
    "encoder": 107_719_680,
}
"""The paper's encoder without its pooling layer, which tests/unit/models/test_tagger.py counts again."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> TokenClassificationLearner:
    """Build the learner of a site; `backbone.folder` of its own file, where given, holds the encoder."""
    chosen = METHOD.resolve(settings)
    if chosen.freeze_words and site.backbone.folder is None:
        raise ConfigError(
            "settings.freeze_words: the new encoder's word embeddings are random, so they have to learn. "
            "Name an encoder's folder under backbone.folder in site.yaml, or set freeze_words to false."
        )
    torch.set_num_threads(site.threads)
    folder, precision = site.backbone.folder, site.backbone.precision
    text = load_encoder(folder, precision, device_of(site.device), chosen.encoder, seed)
    tagger, cohort = Tagger(text, chosen.freeze_words, seed), load_cohort(site)
    check_kind(cohort, "notes")
    shared = load_shared_texts(site, cohort, NOTES, LearnsFromNotes.known)
    return TokenClassificationLearner(site.name, cohort, tagger, chosen, seed, shared)


class TokenClassificationLearner(LearnsFromNotes, RecordsLearner[TaggerSettings, Note, Tagged]):
    """The encoder baseline at one site."""

    predictor: TaggingExtractor
    FILE, BLOCK = "token_classification", "tagger"
    EXPORTED = frozenset({"encoder", "freeze_words", "max_tokens", "sentences"})
    paper = PAPER

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        tagger: Tagger,
        settings: TaggerSettings,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        self.tagger = tagger
        super().__init__(site, cohort, settings, seed, validation)

    @property
    def backbone(self) -> Any:
        return self.tagger.text

    def make_predictor(self) -> TaggingExtractor:
        chosen = self.settings
        return TaggingExtractor(self.tagger, chosen.sentences, chosen.max_tokens, chosen.eval_batch)

    def rows_of(self, records: Sequence[Note]) -> tuple[list[Tagged], Counter[str]]:
        examples, lost = training_examples(self.predictor, records)
        return self.predictor.questions(examples, lost), +lost

    def parameters(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for name, (shape, _) in self.shared_spec().items():
            counts[name.split(".")[0]] += torch.Size(shape).numel()
        return dict(counts)

    def live(self) -> Shared:
        return {n: p for n, p in self.tagger.named_parameters() if p.requires_grad}

    def train(self, batches: Sequence[Sequence[Tagged]], seed: int, part: CosinePart) -> dict[str, float]:
        chosen, watch = self.settings.optimiser, self.terms.watch
        with torch.random.fork_rng():
            return train_round(self.tagger, batches, chosen, seed, self.site, part, watch)

    def mean_loss(self, rows: Sequence[Tagged]) -> float:
        """Return the mean loss per word of some rows."""
        return self.tagger.mean_loss(rows, self.settings.eval_batch)
