# SPDX-License-Identifier: Apache-2.0
"""The encoder baseline of Fed-MedLoRA at one site: extraction by token classification.

It answers the language model's questions about the same windows, so federated, single-site and centralised
runs of both are comparable. All weights of the encoder learn and travel, where Fed-MedLoRA sends an adapter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from medflare.core.data_order import DataOrder, batches, derived_seed, drawn, examples_to_visit
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import SPLITS, Note
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from medflare.learners.client_terms import ClientTerms
from medflare.learners.extraction.validation_notes import digest, load_shared_notes
from medflare.learners.text_task.influence import reference_loss, self_influence
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
    """The learner of a site, from the job's settings and the site's own file (`backbone.folder`: encoder)."""
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


class TokenClassificationLearner:
    """Implements `learners.base.Learner`. One object lives for all rounds of a run.

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
        self.site, self.cohort, self.tagger, self.settings, self.seed = site, cohort, tagger, settings, seed
        self.extractor = TaggingExtractor(
            tagger, settings.sentences, settings.max_tokens, settings.eval_batch
        )
        self.losses: Counter[str] = Counter()
        self.rows = {s: self._questions(self.notes(s), self.losses) for s in SPLITS if s != "test"}
        self.validation = [] if validation is None else list(validation.notes)
        self.shared_rows = self._questions(self.validation)
        self.order = DataOrder(max(len(self.rows["train"]), 1), derived_seed(seed, site, "order"))
        self.terms = ClientTerms(site, self._live)
        self._received: State = {}
        self._spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.initial_shared().items()}

    def notes(self, split: str) -> list[Note]:
        """The site's notes of one split."""
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
        for name, (shape, _) in self._spec.items():
            counts[name.split(".")[0]] += torch.Size(shape).numel()
        skipped = Counter(item.reason for item in self.cohort.skipped) + self.losses
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

    def shared_spec(self) -> SharedSpec:
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        return {}

    def initial_shared(self) -> State:
        return {n: p.detach().cpu().clone() for n, p in self._live().items()}

    def _live(self) -> dict[str, torch.nn.Parameter]:
        """The shared tensors themselves."""
        return {n: p for n, p in self.tagger.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def load_shared(self, state: State) -> None:
        check_state(state, self._spec, f"site '{self.site}': the server's state")
        for name, parameter in self._live().items():
            parameter.copy_(state[name])
        self._received = self.initial_shared()

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """One round at this site; AdamW and its cosine start anew (1.6)."""
        started = time.monotonic()
        hint = plan.hints.influence
        reference = reference_loss(hint, self._shared_loss) if hint else float("nan")
        rows, taken = self.rows["train"], self._round_rows(plan)
        seed = derived_seed(self.seed, self.site, plan.round)
        cut = batches(taken, [len(row.ids) for row in rows], self.settings.optimiser.batch, seed)
        self.terms.begin(plan)
        with torch.random.fork_rng():
            metrics = train_round(
                self.tagger,
                [[rows[i] for i in part] for part in cut],
                self.settings.optimiser,
                seed,
                self.terms.watch,
            )
        told = self.terms.finish()
        factor = told.factor
        if hint:
            loss = self._shared_loss()
            factor = self_influence(loss, reference, hint.temperature, hint.clip)
            metrics["shared_loss"] = loss
        metrics |= told.metrics | {"seconds": time.monotonic() - started}
        delta = {n: t - self._received[n] for n, t in self.initial_shared().items()}
        n = len(rows)
        return Update(delta=delta, examples=n, metrics=metrics, sums=told.sums, factor=factor)

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Which training examples this round visits."""
        rows = self.rows["train"]
        if not rows:
            raise UpdateError(
                f"site '{self.site}' has no training example; look with `medflare cohort inspect`."
            )
        batch, epochs = self.settings.optimiser.batch, self.settings.local_epochs
        return self.order.take(examples_to_visit(plan, len(rows), batch, epochs))

    def _shared_loss(self) -> float:
        """Mean loss per word on D_v (ML-4) with the weights as they are."""
        if not self.shared_rows:
            raise none_shared(self.site)
        return self.tagger.mean_loss(self.shared_rows, self.settings.eval_batch)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        rows = self.rows[split] if split in self.rows else self._questions(self.notes(split))
        if count := plan.hints.probe:
            rows = drawn(rows, count, self.seed, self.site, plan.round)
        found = {"loss": self.tagger.mean_loss(rows, self.settings.eval_batch)} if rows else {}
        notes = self.notes(split)[: self.settings.eval_limit if plan.limit is None else plan.limit]
        if plan.hints.loss_only or plan.hints.probe or not notes:
            return found
        return found | quick_extraction_metrics(self.extractor.documents(notes, self.site, "generic"))

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        notes = self.notes("test")[: plan.limit]
        if not notes:
            return []
        scored = score_notes(self.extractor, notes, self.site, "participant", "generic", folder, self.seed)
        return [scored]

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return self.terms.state(), {"position": self.order.position}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.order.position = int(values["position"])
        self.terms.restore(dict(tensors))
