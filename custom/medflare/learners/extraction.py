# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA and Fed-MedLoRA+ at one site: clinical information extraction by a language model with LoRA.

Paper: Fed-MedLoRA; algorithms.md section 4, resolutions ML-1 to ML-15. The two differ at the server (rule
`influence`) and, in its client mode, by the factor that `fit` returns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from medflare.cohort.records import SPLITS, Note
from medflare.cohort.site import Cohort, SiteConfig, load_cohort
from medflare.errors import ConfigError, UpdateError
from medflare.evaluation.run_record import EvaluationRecord
from medflare.extraction.examples import Example
from medflare.extraction.extractor import Extractor, training_examples
from medflare.extraction.prompts import wording
from medflare.learners.base import RoundPlan, SharedSpec, State, Update, check_state
from medflare.learners.extraction_evaluation import curve_metrics, finish_site
from medflare.learners.extraction_settings import ExtractionSettings, resolve
from medflare.learners.influence import self_influence
from medflare.learners.order import DataOrder, batches, derived_seed, examples_to_visit
from medflare.models.adapters import GENERIC
from medflare.models.backbone import device_of, load_backbone
from medflare.models.text_model import Sequenced, TextModel, trainable_counts

READS = "notes"
ADAPTER_PREFIX, MERGED_PREFIX = "adapter.", "merged."
MERGED = "merged"
A, B = "lora_A.weight", "lora_B.weight"

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
    """The learner of a site, from the job's settings and the site's own file."""
    chosen = resolve(settings)
    torch.set_num_threads(site.threads)
    backbone = load_backbone(
        site.backbone.folder, site.backbone.precision, device_of(site.device), "notes_decoder"
    )
    model = TextModel(backbone, chosen.lora, (GENERIC,), seed)
    shared = None
    if site.validation is not None:
        shared = load_cohort(
            site.model_copy(update={"cohort": (site.validation,)}), f"{site.name}, validation"
        )
    return ExtractionLearner(site.name, load_cohort(site), model, chosen, seed, shared)


class ExtractionLearner:
    """Implements `learners.base.Learner`. One object lives for all rounds of a run.

    Args:
        validation: D_v, the notes every site has, for `influence` in client mode (ML-8, ML-15).
    """

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        model: TextModel,
        settings: ExtractionSettings,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        self.site, self.cohort, self.model, self.settings, self.seed = site, cohort, model, settings, seed
        if settings.sharing == "freeze_a":
            model.adapters.set_seeded_a(GENERIC, seed)
        self.extractor = Extractor(
            model,
            wording(model.backbone.extraction, settings.format),
            settings.sentences,
            settings.max_tokens,
            settings.eval_batch,
        )
        self.examples = {s: training_examples(self.extractor, self.notes(s)) for s in SPLITS if s != "test"}
        self.too_long = 0
        self.train_rows = self._sequences(self.examples["train"])
        self.val_rows = self._sequences(self.examples["val"])
        shared = [] if validation is None else training_examples(self.extractor, validation.notes)
        self.shared_rows = self._sequences(shared)
        self.order = DataOrder(max(len(self.train_rows), 1), derived_seed(seed, site, "order"))
        self._received: State = {}
        self._spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.initial_shared().items()}

    def notes(self, split: str) -> list[Note]:
        """The site's notes of one split."""
        return [note for note in self.cohort.notes if note.split == split]

    def _sequences(self, examples: list[Example]) -> list[Sequenced]:
        """Token ids of questions and answers; what is longer than the context allows is left out, counted."""
        words = self.extractor.wording
        found = self.model.sequences(
            [words.question(e) for e in examples], [words.answer(e) for e in examples]
        )
        kept = [row for row in found if len(row.ids) <= self.settings.max_tokens]
        self.too_long += len(found) - len(kept)
        return kept

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        backbone = self.model.backbone
        counts = {"train": len(self.train_rows), "val": len(self.val_rows), "test": len(self.notes("test"))}
        skipped = Counter(item.reason for item in self.cohort.skipped)
        skipped["example too long"] += self.too_long
        return {
            "backbone": {
                "name": backbone.name,
                "fingerprint": backbone.fingerprint,
                "precision": backbone.precision,
            },
            "parameters": trainable_counts(self.model, GENERIC) | {"travelling": self._travelling()},
            "adapter_config": self.model.adapters.config_dict() | {"base_model_name_or_path": backbone.name},
            "export": export_settings(self.model, self.settings, self.seed),
            "examples": counts,
            "skipped": {reason: count for reason, count in skipped.items() if count},
            "heterogeneity": {},
            "settings": self.settings.model_dump(mode="json"),
            "paper": PAPER,
        }

    def _travelling(self) -> int:
        return sum(torch.Size(shape).numel() for shape, _ in self._spec.values())

    def shared_spec(self) -> SharedSpec:
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        return {}

    def initial_shared(self) -> State:
        state = self.model.adapters.state(GENERIC)
        return {ADAPTER_PREFIX + name: value for name, value in state.items() if self._travels(name)}

    def _travels(self, name: str) -> bool:
        """Whether a factor leaves the site (`sharing`)."""
        own = {"freeze_a": A, "fedsa": B}.get(self.settings.sharing)
        return own is None or not name.endswith(own)

    def load_shared(self, state: State) -> None:
        own = {
            n: t for n, t in state.items() if n.startswith(MERGED_PREFIX) and self.settings.sharing == "stack"
        }
        shared = {n: t for n, t in state.items() if n not in own}
        check_state(shared, self._spec, f"site '{self.site}': the server's state")
        adapter = {n.removeprefix(ADAPTER_PREFIX): t for n, t in shared.items()}
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | adapter)
        if own:
            self.model.adapters.put(MERGED, {n.removeprefix(MERGED_PREFIX): t for n, t in own.items()})
        self._received = self.initial_shared()

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """One round at this site (4.1): AdamW and its cosine start anew (1.6)."""
        started = time.monotonic()
        hint = plan.hints.get("influence")
        reference = self._shared_loss() if hint else float("nan")
        rows = self._round_rows(plan)
        seed = derived_seed(self.seed, self.site, plan.round)
        cut = batches(rows, [len(row.ids) for row in self.train_rows], self.settings.optimiser.batch, seed)
        from medflare.learners.round_trainer import (
            train_round,
        )  # transformers' Trainer takes seconds to import

        self.use(train=True)
        torch.manual_seed(seed)
        self.model.backbone.model.train()
        metrics = train_round(
            self.model, [[self.train_rows[i] for i in part] for part in cut], self.settings.optimiser, seed
        )
        self.use()
        after = self.initial_shared()
        factor = 1.0
        if hint:
            loss = self._shared_loss()
            factor = self_influence(loss, reference, hint["temperature"], hint["clip"])
            metrics |= {"shared_loss": loss, "factor": factor}
        metrics["seconds"] = time.monotonic() - started
        delta = {n: after[n].float() - self._received[n].float() for n in after}
        return Update(delta=delta, examples=len(self.train_rows), metrics=metrics, factor=factor)

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Which training examples this round visits."""
        if not self.train_rows:
            raise UpdateError(
                f"site '{self.site}' has no training example; look with `medflare cohort inspect`."
            )
        count = examples_to_visit(plan, len(self.train_rows), self.settings.optimiser.batch)
        if plan.steps is None and plan.fraction is None:
            count = len(self.train_rows) * self.settings.local_epochs
        return self.order.take(count)

    def _shared_loss(self) -> float:
        """Mean loss per output token on D_v (ML-4) with the weights as they are."""
        if not self.shared_rows:
            raise ConfigError(
                f"site '{self.site}': rule 'influence' in client mode needs the shared validation notes. "
                "Name them under 'validation' in site.yaml (format and root, as under 'cohort')."
            )
        return self.model.mean_loss(self.shared_rows, self.settings.eval_batch)

    def use(self, train: bool = False) -> None:
        """Which adapters compute; with `train`, the site's own factors learn."""
        active = (GENERIC, MERGED) if MERGED in self.model.adapters.names else (GENERIC,)
        self.model.adapters.use(active, train=(GENERIC,) if train else ())
        if train and self.settings.sharing == "freeze_a":
            for name, parameter in self.model.adapters.peft.named_parameters():
                if "lora_A" in name:
                    parameter.requires_grad_(False)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        self.use()
        rows = self.val_rows if split == "val" else self._sequences(self.examples.get(split, []))
        found = {"loss": self.model.mean_loss(rows, self.settings.eval_batch)} if rows else {}
        if plan.hints.get("loss_only"):
            return found
        notes = self.notes(split)[: self.settings.eval_limit if plan.limit is None else plan.limit]
        return found | curve_metrics(self, notes)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        self.use()
        return finish_site(self, folder, plan.limit)

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        state = self.model.adapters.state(GENERIC)
        own = {name: value for name, value in state.items() if not self._travels(name)}
        return own, {"position": self.order.position}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.order.position = int(values["position"])
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | dict(tensors))


def export_settings(model: TextModel, settings: ExtractionSettings, seed: int) -> dict[str, Any]:
    """What a reader needs besides the adapter to extract with it; extraction.json.

    `untravelled` says how the server completes an adapter of which only one factor travels: A from the seed
    (`freeze_a`), B = 0 (`fedsa`: a hospital without a B of its own starts from zero, 7.8).
    """
    missing = {"freeze_a": A, "fedsa": B}.get(settings.sharing)
    shapes = {
        n: list(t.shape) for n, t in model.adapters.state(GENERIC).items() if missing and n.endswith(missing)
    }
    return {
        "file": "extraction",
        "format": 1,
        "extraction": settings.model_dump(mode="json", include={"lora", "format", "sentences", "max_tokens"}),
        "backbone": {"name": model.backbone.name, "fingerprint": model.backbone.fingerprint},
        "untravelled": {"seed": seed, "shapes": shapes},
    }
