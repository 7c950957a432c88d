# SPDX-License-Identifier: Apache-2.0
"""The encoder baseline of Fed-MedLoRA at one site: extraction by token classification.

It answers the language model's questions about the same windows, so federated, single-site and centralised
runs of both are comparable. All weights of the encoder learn and are communicated, where Fed-MedLoRA sends
an adapter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from medflare.core.data_order import batches, derived_seed, drawn
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.update import Update
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import SPLITS, Note
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from medflare.learners.base import BaseLearner
from medflare.learners.client_terms.base import Shared
from medflare.learners.extraction.validation_notes import digest, load_shared_notes
from medflare.learners.text_task.influence import SelfInfluence
from medflare.learners.text_task.validation_texts import none_shared
from medflare.learners.token_classification.settings import METHOD, TaggerSettings
from medflare.learners.token_classification.training import train_round
from medflare.models.backbone import device_of
from medflare.models.encoder_folder import load_encoder
from medflare.models.tagger import Tagged, Tagger
from medflare.tasks.extraction.evaluation import score_notes
from medflare.tasks.extraction.predictor import training_examples
from medflare.tasks.extraction.tagging import TaggingExtractor

FILE = "token_classification"

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
    text = load_encoder(
        site.backbone.folder, site.backbone.precision, device_of(site.device), chosen.encoder, seed
    )
    tagger, cohort = Tagger(text, chosen.freeze_words, seed), load_cohort(site)
    shared = load_shared_notes(site, cohort)
    return TokenClassificationLearner(site.name, cohort, tagger, chosen, seed, shared)


class TokenClassificationLearner(BaseLearner):
    """The encoder baseline at one site.

    Args:
        validation: D_v, the notes every site has, for rule `influence` in client mode (ML-8, ML-15).
    """

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        tagger: Tagger,
        settings: TaggerSettings,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        self.cohort, self.tagger, self.settings = cohort, tagger, settings
        self.extractor = TaggingExtractor(
            tagger, settings.sentences, settings.max_tokens, settings.eval_batch
        )
        self.lost: Counter[str] = Counter()
        self.rows = {s: self._questions(self.notes(s), self.lost) for s in SPLITS if s != "test"}
        super().__init__(site, seed, len(self.rows["train"]))
        self.validation = [] if validation is None else list(validation.notes)
        self.shared_rows = self._questions(self.validation)

    def notes(self, split: str) -> list[Note]:
        """Return the site's notes of one split."""
        return [note for note in self.cohort.notes if note.split == split]

    def _questions(self, notes: list[Note], losses: Counter[str] | None = None) -> list[Tagged]:
        examples, lost = training_examples(self.extractor, notes)
        if losses is not None:
            losses.update(+lost)
        return self.extractor.questions(examples, losses)

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        text = self.tagger.text
        counts: Counter[str] = Counter()
        for name, (shape, _) in self.shared_spec().items():
            counts[name.split(".")[0]] += torch.Size(shape).numel()
        skipped = Counter(item.reason for item in self.cohort.skipped) + self.lost
        return SiteDescription(
            backbone=BackboneFacts.of(text),
            parameters=dict(counts),
            export={
                "file": FILE,
                "format": 1,
                "tagger": self.settings.model_dump(
                    mode="json", include={"encoder", "freeze_words", "max_tokens", "sentences"}
                ),
                "backbone": {"name": text.name, "fingerprint": text.fingerprint},
            },
            examples={s: len(rows) for s, rows in self.rows.items()} | {"test": len(self.notes("test"))},
            skipped=dict(skipped),
            settings=self.settings.model_dump(mode="json"),
            paper=PAPER,
            validation=digest(self.validation),
        )

    def live(self) -> Shared:
        return {n: p for n, p in self.tagger.named_parameters() if p.requires_grad}

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round; AdamW and its cosine start anew."""
        started = time.monotonic()
        influence = SelfInfluence(plan.hints.influence, self._shared_loss)
        rows, chosen = self.rows["train"], self.settings.optimiser
        taken = self._round_rows(plan)
        seed = derived_seed(self.seed, self.site, plan.round)
        cut = batches(taken, [len(row.ids) for row in rows], chosen.batch, seed)
        self.terms.begin(plan)
        with torch.random.fork_rng():
            metrics = train_round(
                self.tagger, [[rows[i] for i in part] for part in cut], chosen, seed, self.terms.watch
            )
        output = self.terms.finish()
        factor, measured = influence.measure(output.factor)
        metrics |= measured | output.metrics | {"seconds": time.monotonic() - started}
        return Update(
            delta=self.delta(), examples=len(rows), metrics=metrics, sums=output.sums, factor=factor
        )

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Return the training examples that this round visits."""
        batch, epochs = self.settings.optimiser.batch, self.settings.local_epochs
        return self.round_examples(plan, len(self.rows["train"]), batch, epochs)

    def _shared_loss(self) -> float:
        """Return the mean loss per word on D_v (ML-4) with the weights as they are."""
        if not self.shared_rows:
            raise none_shared(self.site)
        return self.tagger.mean_loss(self.shared_rows, self.settings.eval_batch)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        rows = self.rows[split] if split in self.rows else self._questions(self.notes(split))
        if count := plan.hints.probe:
            rows = drawn(rows, count, self.seed, self.site, plan.round)
        metrics = {"loss": self.tagger.mean_loss(rows, self.settings.eval_batch)} if rows else {}
        notes = self.notes(split)[: self.settings.eval_limit if plan.limit is None else plan.limit]
        if plan.hints.loss_only or plan.hints.probe or not notes:
            return metrics
        return metrics | quick_extraction_metrics(self.extractor.documents(notes, self.site, "generic"))

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        notes = self.notes("test")[: plan.limit]
        if not notes:
            return []
        scored = score_notes(self.extractor, notes, self.site, "participant", "generic", folder, self.seed)
        return [scored]
