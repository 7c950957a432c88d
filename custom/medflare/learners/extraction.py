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

from medflare.cohort.records import Note
from medflare.cohort.site import Cohort, SiteConfig, load_cohort
from medflare.errors import ConfigError, UpdateError
from medflare.evaluation.run_record import EvaluationRecord
from medflare.extraction.extractor import Extractor
from medflare.extraction.prompts import wording
from medflare.learners.base import RoundPlan, SharedSpec, State, Update, check_state
from medflare.learners.extraction_evaluation import curve_metrics, finish_site
from medflare.learners.extraction_rows import rows_of
from medflare.learners.extraction_settings import ExtractionSettings, resolve
from medflare.learners.influence import reference_loss, self_influence
from medflare.learners.order import DataOrder, batches, derived_seed, drawn, examples_to_visit
from medflare.learners.shared_notes import digest, load_shared_notes
from medflare.learners.terms import ClientTerms
from medflare.models.adapters import GENERIC
from medflare.models.backbone import device_of, load_backbone
from medflare.models.text_model import Sequenced, TextModel

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
    model = TextModel(backbone, chosen.adapter, (GENERIC,), seed)
    cohort = load_cohort(site)
    return ExtractionLearner(site.name, cohort, model, chosen, seed, load_shared_notes(site, cohort))


class ExtractionLearner:
    """Implements `learners.base.Learner`. One object lives for all rounds of a run.

    Args:
        validation: D_v, the notes every site has, for `influence` in client mode (ML-15).
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
        self.longest = min(settings.max_tokens, model.context)
        self.train_rows, lost = rows_of(self.extractor, self.notes("train"), self.longest)
        self.val_rows, lost_too = rows_of(self.extractor, self.notes("val"), self.longest)
        self.lost = lost + lost_too
        self.validation = [] if validation is None else validation.notes
        self.shared_rows, _ = rows_of(self.extractor, self.validation, self.longest)
        self.order = DataOrder(max(len(self.train_rows), 1), derived_seed(seed, site, "order"))
        self.terms = ClientTerms(site, self._live)
        self._received: State = {}
        self._merged = False
        self._spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.initial_shared().items()}

    def notes(self, split: str) -> list[Note]:
        """The site's notes of one split."""
        return [note for note in self.cohort.notes if note.split == split]

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        backbone = self.model.backbone
        counts = {"train": len(self.train_rows), "val": len(self.val_rows), "test": len(self.notes("test"))}
        skipped = Counter(item.reason for item in self.cohort.skipped) + self.lost
        facts = {
            "backbone": {
                "name": backbone.name,
                "fingerprint": backbone.fingerprint,
                "precision": backbone.precision,
            },
            "parameters": {"adapter": self._travelling()},
            "adapter_config": self.model.adapters.config_dict() | {"base_model_name_or_path": backbone.name},
            "export": export_settings(self.model, self.settings, self.seed),
            "examples": counts,
            "skipped": dict(skipped),
            "heterogeneity": {},
            "settings": self.settings.model_dump(mode="json"),
            "paper": PAPER,
        }
        if self.validation:
            facts["validation"] = {"notes": len(self.validation), "sha256": digest(self.validation)}
        return facts

    def _travelling(self) -> int:
        return sum(torch.Size(shape).numel() for shape, _ in self._spec.values())

    def shared_spec(self) -> SharedSpec:
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        spec: SharedSpec = self.model.adapters.sums_spec()
        return spec

    def initial_shared(self) -> State:
        state = self.model.adapters.state(GENERIC)
        return {ADAPTER_PREFIX + name: value for name, value in state.items() if self._travels(name)}

    def _live(self) -> dict[str, torch.nn.Parameter]:
        """The shared tensors themselves."""
        own = self.model.adapters.live(GENERIC)
        return {ADAPTER_PREFIX + name: p for name, p in own.items() if self._travels(name)}

    def _travels(self, name: str) -> bool:
        """Whether a factor leaves the site (`sharing`)."""
        own = {"freeze_a": A, "fedsa": B}.get(self.settings.sharing)
        return own is None or not name.endswith(own)

    def load_shared(self, state: State) -> None:
        merged = {n: t for n, t in state.items() if n.startswith(MERGED_PREFIX)}
        shared = {n: t for n, t in state.items() if n not in merged}
        whose = f"site '{self.site}': the server's state"
        if merged and self.settings.sharing != "stack":
            raise UpdateError(
                f"{whose} holds {len(merged)} merged factors, as rule 'lora_stack' makes them, but "
                f"settings.sharing is '{self.settings.sharing}'. Set it to 'stack', or take another rule."
            )
        check_state(shared, self._spec, whose)
        if merged:
            check_state(merged, self._merged_spec(merged), whose)
            self.model.adapters.put(MERGED, {n.removeprefix(MERGED_PREFIX): t for n, t in merged.items()})
        self._merged = bool(merged)
        adapter = {n.removeprefix(ADAPTER_PREFIX): t for n, t in shared.items()}
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | adapter)
        self._received = self.initial_shared()
        self.use()

    def _merged_spec(self, merged: State) -> SharedSpec:
        """What merged factors must be like: every pair of the adapter, each of whatever rank its A has."""
        spec: SharedSpec = {}
        for name, (shape, dtype) in self._spec.items():
            own = name.replace(ADAPTER_PREFIX, MERGED_PREFIX, 1)
            first = merged.get(own.removesuffix(B).removesuffix(A) + A)
            rank = shape[0] if first is None or first.ndim != 2 else first.shape[0]
            spec[own] = ((rank, shape[1]) if own.endswith(A) else (shape[0], rank), dtype)
        return spec

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """One round at this site (4.1): AdamW and its cosine start anew (1.6)."""
        # transformers' Trainer takes seconds to import
        from medflare.learners.round_trainer import train_round

        started = time.monotonic()
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.use()
        hint = plan.hints.get("influence")
        reference = reference_loss(hint, self._shared_loss) if hint else float("nan")
        rows = self._round_rows(plan)
        seed = derived_seed(self.seed, self.site, plan.round)
        cut = batches(rows, [len(row.ids) for row in self.train_rows], self.settings.optimiser.batch, seed)
        self.use(train=True)
        self.model.backbone.model.train()
        self.terms.begin(plan)
        metrics = train_round(
            self.model,
            [[self.train_rows[i] for i in part] for part in cut],
            self.settings.optimiser,
            seed,
            self.terms.watch,
        )
        told = self.terms.finish()
        self.use()
        after = self.initial_shared()
        factor = told.factor
        if hint:
            loss = self._shared_loss()
            factor = self_influence(loss, reference, hint["temperature"], hint["clip"])
            metrics["shared_loss"] = loss
        metrics |= told.metrics | {"seconds": time.monotonic() - started}
        delta = {n: after[n].float() - self._received[n].float() for n in after}
        n = len(self.train_rows)
        sums = told.sums | self.model.adapters.sums(n)
        return Update(delta=delta, examples=n, metrics=metrics, sums=sums, factor=factor)

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Which training examples this round visits."""
        if not self.train_rows:
            raise UpdateError(
                f"site '{self.site}' has no training example; look with `medflare cohort inspect`."
            )
        step = self.settings.optimiser.batch * self.settings.optimiser.accumulate
        count = examples_to_visit(plan, len(self.train_rows), step)
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
        active = (GENERIC, MERGED) if self._merged else (GENERIC,)
        self.model.adapters.use(active, train=(GENERIC,) if train else ())
        if train and self.settings.sharing == "freeze_a":
            for name, parameter in self.model.adapters.peft.named_parameters():
                if "lora_A" in name:
                    parameter.requires_grad_(False)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        self.use()
        if plan.hints.get("loss_only") and self.settings.sharing == "fedsa":
            raise ConfigError(
                "settings.sharing is 'fedsa': every site keeps its own B, so the server can score nothing. "
                'Set rule_settings: {"mode": "client"}, or another sharing.'
            )
        rows = self._rows(split)
        if count := plan.hints.get("probe"):
            rows = drawn(rows, count, self.seed, self.site, plan.round)
        found = {"loss": self.model.mean_loss(rows, self.settings.eval_batch)} if rows else {}
        if plan.hints.get("loss_only") or plan.hints.get("probe"):
            return found
        notes = self.notes(split)[: self.settings.eval_limit if plan.limit is None else plan.limit]
        return found | curve_metrics(self, notes)

    def _rows(self, split: str) -> list[Sequenced]:
        """Questions and answers of a split; those of the test are not kept, they are asked for rarely."""
        if split == "test":
            return rows_of(self.extractor, self.notes(split), self.longest)[0]
        return self.train_rows if split == "train" else self.val_rows

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        self.use()
        return finish_site(self, folder, plan.limit)

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        state = self.model.adapters.state(GENERIC)
        own = {name: value for name, value in state.items() if not self._travels(name)}
        return own | self.terms.state(), {"position": self.order.position}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.order.position = int(values["position"])
        own = self.terms.restore(dict(tensors))
        self.model.adapters.load(GENERIC, self.model.adapters.state(GENERIC) | own)


def export_settings(model: TextModel, settings: ExtractionSettings, seed: int) -> dict[str, Any]:
    """What a reader needs besides the adapter to extract with it; extraction.json.

    `untravelled` says how the server completes an adapter of which only one factor travels: A from the seed
    (`freeze_a`), B = 0 (`fedsa`: a hospital without a B of its own starts from zero, 7.8).
    """
    missing = {"freeze_a": A, "fedsa": B}.get(settings.sharing)
    shapes = {
        n: list(t.shape) for n, t in model.adapters.state(GENERIC).items() if missing and n.endswith(missing)
    }
    kept = {"lora", "peft", "format", "sentences", "max_tokens"}
    return {
        "file": "extraction",
        "format": 1,
        "extraction": settings.model_dump(mode="json", include=kept),
        "backbone": {"name": model.backbone.name, "fingerprint": model.backbone.fingerprint},
        "untravelled": {"seed": seed, "shapes": shapes} | model.adapters.untravelled(),
    }
