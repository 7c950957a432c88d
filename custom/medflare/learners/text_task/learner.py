# SPDX-License-Identifier: Apache-2.0
"""Shared learner of the tasks of a frozen language model with an adapter, at one site."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors.torch import save_file

from medflare.core.errors import ConfigError
from medflare.core.method import Method
from medflare.core.metrics import Metrics
from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.data.cohort import Cohort, check_kind
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig
from medflare.learners.client_terms.base import Shared
from medflare.learners.optim import CosinePart
from medflare.learners.patient_rows import PatientRows
from medflare.learners.text_task.records_learner import RecordsLearner
from medflare.learners.text_task.settings import TextTaskSettings
from medflare.learners.text_task.shared_adapter import SharedAdapter
from medflare.learners.text_task.validation_texts import load_shared_texts
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import device_of, load_backbone
from medflare.models.text_model import Sequenced, TextModel
from medflare.tasks import get_task
from medflare.tasks.scoring import AdapterKind

SettingsT = TypeVar("SettingsT", bound=TextTaskSettings)
Record = TypeVar("Record")


def text_model(settings: TextTaskSettings, site: SiteConfig, seed: int, task: str) -> TextModel:
    """Return the site's backbone, or the embedded one of a task, with the adapter of `settings`."""
    torch.set_num_threads(site.threads)
    if site.spread_layers:
        _require_spreadable(settings)
    backbone = load_backbone(
        site.backbone.folder,
        site.backbone.precision,
        device_of(site.device),
        get_task(task).embedded_backbone,
        spread=len(site.devices) if site.spread_layers else 1,
    )
    return TextModel(backbone, settings.adapter, (GENERIC,), seed)


def _require_spreadable(settings: TextTaskSettings) -> None:
    """Raise ConfigError where the job's training needs all of the adapter on one device."""
    if settings.peft_method != "lora" or settings.dp is not None:
        what = "settings.dp" if settings.dp is not None else f"settings.peft.method '{settings.peft_method}'"
        raise ConfigError(
            f"spread_layers in site.yaml is for plain LoRA, whose factors lie beside their layers; this job "
            f"has {what}. Leave spread_layers out, with a precision in which one card holds the model."
        )


class TextTaskLearner(RecordsLearner[SettingsT, Record, Sequenced]):
    """A frozen language model with an adapter at one site; a task adds its records and its predictor.

    Attributes:
        adapter: what is communicated of the model's adapter.
        longest: tokens of a question and its answer.
    """

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        model: TextModel,
        settings: SettingsT,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        self.model, self.longest = model, min(settings.max_tokens, model.context)
        self.patients: PatientRows | None = None
        self.adapter = SharedAdapter(site, model, settings.sharing, seed)
        super().__init__(site, cohort, settings, seed, validation)

    @classmethod
    def build(
        cls, method: Method[SettingsT], settings: Mapping[str, Any], site: SiteConfig, seed: int
    ) -> Self:
        """Build the learner of a site from the job's settings and the site's own file."""
        chosen = method.resolve(settings)
        cohort = load_cohort(site)
        check_kind(cohort, get_task(method.task).reads)
        model = text_model(chosen, site, seed, method.task)
        shared = load_shared_texts(site, cohort, cls.RECORDS, cls.known)
        return cls(site.name, cohort, model, chosen, seed, shared)

    @property
    def backbone(self) -> Any:
        return self.model.backbone

    def training_rows(self) -> tuple[Sequence[Sequenced], Counter[str]]:
        """Return the rows to learn from; under `dp` record by record, so that each has its patient."""
        if self.settings.dp is None:
            return super().training_rows()
        self.patients, rows, lost = PatientRows(), list[Sequenced](), Counter[str]()
        for record in self.records("train"):
            of_record, missed = self.rows_of([record])
            self.patients.add(self.RECORDS.patient(record), range(len(rows), len(rows) + len(of_record)))
            rows += of_record
            lost += missed
        return rows, lost

    @property
    def training_examples(self) -> int:
        """Questions; under `dp` patients, so that nothing is told of how much is known of one."""
        return super().training_examples if self.patients is None else len(self.patients)

    @property
    def patient_privacy(self) -> PatientPrivacy | None:
        if self.patients is None or self.settings.dp is None:
            return None
        return self.patients.privacy(self.settings.dp, self.settings.local_epochs)

    # ---- what is declared --------------------------------------------------------------------------------

    def parameters(self) -> dict[str, int]:
        return {"adapter": self.adapter.parameters()}

    def adapter_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.model.adapters.config_dict()
        return config | {"base_model_name_or_path": self.backbone.name}

    def export(self) -> dict[str, Any]:
        return super().export() | {"untravelled": self.adapter.not_communicated()}

    def sums_spec(self, sites: int) -> SharedSpec:
        spec: SharedSpec = self.model.adapters.auxiliary_sums_spec()
        return spec

    def live(self) -> Shared:
        return self.adapter.live()

    def initial_shared(self) -> State:
        return self.adapter.state()

    def load_shared(self, state: State) -> None:
        # Merged factors of rule lora_stack are no declared tensors, so the adapter checks the state itself.
        self.adapter.load(state)
        self._received = self.initial_shared()

    # ---- training and quality ----------------------------------------------------------------------------

    def begin_round(self, plan: RoundPlan) -> None:
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)

    def train_round(self, plan: RoundPlan, seed: int) -> dict[str, float]:
        if self.patients is None or self.settings.dp is None:
            return super().train_round(plan, seed)
        # Opacus takes seconds to import
        from medflare.learners.text_task.private_training import train_round_privately

        self.terms.begin(plan)
        self._begin_training()
        patients, privacy = self.patients.of_site(self.site), self.patient_privacy
        steps, part = privacy.steps(plan) if privacy else 0, self.settings.optimiser.cosine_part(plan)
        return train_round_privately(
            self.model, self.train_rows, patients, self.settings, steps, part, self.terms.watch
        )

    def _begin_training(self) -> None:
        self.adapter.use(train=True)
        self.model.backbone.model.train()

    def train(self, batches: Sequence[Sequence[Sequenced]], seed: int, part: CosinePart) -> dict[str, float]:
        # transformers' Trainer takes seconds to import
        from medflare.learners.text_task.training import train_round

        self._begin_training()
        chosen, watch = self.settings.optimiser, self.terms.watch
        return train_round(self.model, batches, chosen, seed, self.site, part, watch)

    def round_sums(self) -> State:
        sums: State = self.model.adapters.auxiliary_sums(len(self.train_rows))
        return sums

    def use(self) -> None:
        self.adapter.use()

    def mean_loss(self, rows: Sequence[Sequenced]) -> float:
        """Return the mean loss per output token of some rows."""
        return self.model.mean_loss(rows, self.settings.eval_batch)

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        if plan.hints.loss_only and self.settings.sharing == "fedsa":
            raise ConfigError(
                "settings.sharing is 'fedsa': every site keeps its own B, so the server can score nothing. "
                'Set rule_settings: {"mode": "client"}, or another sharing.'
            )
        return super().evaluate(split, plan)

    @property
    def adapter_kind(self) -> AdapterKind:
        return "personalised" if self.settings.sharing == "fedsa" else "generic"

    def write_own_adapter(self, folder: Path) -> None:
        """Write the adapter where the site has its own B (`fedsa`)."""
        if self.adapter_kind == "generic":
            return
        adapters, place = self.model.adapters, folder / "personalised"
        place.mkdir(parents=True, exist_ok=True)
        save_file(adapters.file_tensors(GENERIC), place / "adapter_model.safetensors")
        config = json.dumps(self.adapter_config(), indent=1) + "\n"
        (place / "adapter_config.json").write_text(config, encoding="utf-8")

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        return self.adapter.local_factors() | tensors, values

    def _restore(self, tensors: State) -> None:
        self.adapter.restore(tensors)
