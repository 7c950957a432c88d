# SPDX-License-Identifier: Apache-2.0
"""What tasks of a frozen language model with an adapter share at one site: declaration, a round, local state.

A task adds the questions it trains on, how it is scored and what a reader of its result needs. Training
follows Fed-MedLoRA; weights by influence: ML-4, ML-15.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from safetensors.torch import save_file

from medflare.core.data_order import DataOrder, batches, derived_seed, drawn
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SharedRecords, SiteDescription
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.data.cohort import Cohort
from medflare.data.settings.site import SiteConfig
from medflare.learners.base import BaseLearner
from medflare.learners.client_terms.base import Shared
from medflare.learners.text_task.influence import SelfInfluence
from medflare.learners.text_task.settings import TextTaskSettings
from medflare.learners.text_task.shared_adapter import SharedAdapter
from medflare.learners.text_task.validation_texts import none_shared
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import device_of, load_backbone
from medflare.models.text_model import Sequenced, TextModel
from medflare.tasks import get_task

Settings = TypeVar("Settings", bound=TextTaskSettings)


def text_model(settings: TextTaskSettings, site: SiteConfig, seed: int, task: str) -> TextModel:
    """Return the site's backbone, or the embedded one of a task, with the adapter of `settings`."""
    torch.set_num_threads(site.threads)
    folder, precision = site.backbone.folder, site.backbone.precision
    backbone = load_backbone(folder, precision, device_of(site.device), get_task(task).embedded_backbone)
    return TextModel(backbone, settings.adapter, (GENERIC,), seed)


class TextTaskLearner(BaseLearner, Generic[Settings]):
    """A learner but for what a task adds: its questions, its scores, its final test.

    Attributes:
        FILE: name of the file beside a result's adapter, without its ending; also the block in it.
        EXPORTED: the settings that a reader of the result needs.
        PAPER: the paper's own counts, for the record.
        longest: tokens of a question and its answer.
        shared_rows: questions about D_v, the records that every site has, for rule `influence` (ML-15).
    """

    FILE: ClassVar[str]
    EXPORTED: ClassVar[frozenset[str]]
    PAPER: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, site: str, cohort: Cohort, model: TextModel, settings: Settings, seed: int) -> None:
        self.cohort, self.model, self.settings = cohort, model, settings
        self.adapter = SharedAdapter(site, model, settings.sharing, seed)
        super().__init__(site, seed)
        self.longest = min(settings.max_tokens, model.context)
        self.train_rows: Sequence[Sequenced] = ()
        self.val_rows: Sequence[Sequenced] = ()
        self.shared_rows: Sequence[Sequenced] = ()
        self.lost: Counter[str] = Counter()

    def learn_from(self, train: Sequence[Sequenced], val: Sequence[Sequenced]) -> None:
        """Set the questions and answers of both splits; a task calls it once, when it has made them."""
        self.train_rows, self.val_rows = train, val
        self.order = DataOrder(max(len(train), 1), derived_seed(self.seed, self.site, "order"))

    # ---- what a task adds --------------------------------------------------------------------------------

    @abstractmethod
    def tested(self) -> int:
        """Return how many records the split `test` has."""

    @abstractmethod
    def test_rows(self) -> Sequence[Sequenced]:
        """Return questions and answers of the split `test`; they are made anew, as they are needed rarely."""

    @abstractmethod
    def quality(self, split: str, limit: int | None) -> dict[str, float]:
        """Return scores on the first records of a split with the adapter in use; limit None: as set."""

    @abstractmethod
    def test(self, folder: Path, limit: int | None) -> list[EvaluationRecord]:
        """Return the final test quality with the adapter in use."""

    def shared_records(self) -> SharedRecords | None:
        """Return count and digest of D_v, which the server compares between sites; None without any."""
        return None

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        backbone = self.model.backbone
        counts = {"train": len(self.train_rows), "val": len(self.val_rows), "test": self.tested()}
        skipped = Counter(item.reason for item in self.cohort.skipped) + self.lost
        return SiteDescription(
            backbone=BackboneFacts.of(backbone),
            parameters={"adapter": self.adapter.parameters()},
            adapter_config=self.model.adapters.config_dict() | {"base_model_name_or_path": backbone.name},
            export=self.export(),
            examples=counts,
            skipped=dict(skipped),
            settings=self.settings.model_dump(mode="json"),
            paper=dict(self.PAPER),
            validation=self.shared_records(),
        )

    def export(self) -> dict[str, Any]:
        """Return what a reader needs besides the adapter, `<FILE>.json` of a result."""
        backbone = self.model.backbone
        return {
            "file": self.FILE,
            "format": 1,
            self.FILE: self.settings.model_dump(mode="json", include=set(self.EXPORTED)),
            "backbone": {"name": backbone.name, "fingerprint": backbone.fingerprint},
            "untravelled": self.adapter.not_communicated(),
        }

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

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round; AdamW and its cosine start anew."""
        # transformers' Trainer takes seconds to import
        from medflare.learners.text_task.training import train_round

        started = time.monotonic()
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.use()
        influence = SelfInfluence(plan.hints.influence, self._shared_loss)
        chosen, n = self.settings.optimiser, len(self.train_rows)
        taken = self._round_rows(plan)
        seed = derived_seed(self.seed, self.site, plan.round)
        cut = batches(taken, [len(row.ids) for row in self.train_rows], chosen.batch, seed)
        self.use(train=True)
        self.model.backbone.model.train()
        self.terms.begin(plan)
        metrics = train_round(
            self.model, [[self.train_rows[i] for i in part] for part in cut], chosen, seed, self.terms.watch
        )
        output = self.terms.finish()
        self.use()
        factor, measured = influence.measure(output.factor)
        metrics |= measured | output.metrics | {"seconds": time.monotonic() - started}
        sums = output.sums | self.model.adapters.auxiliary_sums(n)
        return Update(delta=self.delta(), examples=n, metrics=metrics, sums=sums, factor=factor)

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Return the training examples that this round visits."""
        step = self.settings.optimiser.batch * self.settings.optimiser.accumulate
        return self.round_examples(plan, len(self.train_rows), step, self.settings.local_epochs)

    def _shared_loss(self) -> float:
        """Return the mean loss per output token on D_v (ML-4) with the weights as they are."""
        if not self.shared_rows:
            raise none_shared(self.site)
        return self.model.mean_loss(self.shared_rows, self.settings.eval_batch)

    def use(self, train: bool = False) -> None:
        """Let the site's adapter compute; with `train`, its own factors learn."""
        self.adapter.use(train)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        self.use()
        if plan.hints.loss_only and self.settings.sharing == "fedsa":
            raise ConfigError(
                "settings.sharing is 'fedsa': every site keeps its own B, so the server can score nothing. "
                'Set rule_settings: {"mode": "client"}, or another sharing.'
            )
        rows = self._rows(split)
        if count := plan.hints.probe:
            rows = drawn(rows, count, self.seed, self.site, plan.round)
        metrics = {"loss": self.model.mean_loss(rows, self.settings.eval_batch)} if rows else {}
        if plan.hints.loss_only or plan.hints.probe:
            return metrics
        return metrics | self.quality(split, plan.limit)

    def _rows(self, split: str) -> Sequence[Sequenced]:
        if split == "test":
            return self.test_rows()
        return self.train_rows if split == "train" else self.val_rows

    def tested_adapter(self, folder: Path) -> Literal["generic", "personalised"]:
        """Return what the site's adapter is; with its own B (`fedsa`) it is personalised and written."""
        if self.settings.sharing != "fedsa":
            return "generic"
        write_personalised(self.model, folder / "personalised")
        return "personalised"

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        self.use()
        return self.test(folder, plan.limit)

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        return self.adapter.local_factors() | tensors, values

    def _restore(self, tensors: State) -> None:
        self.adapter.restore(tensors)


def write_personalised(model: TextModel, folder: Path) -> None:
    """Write the shared factors with the site's own as a PEFT folder."""
    adapters = model.adapters
    config = adapters.config_dict() | {"base_model_name_or_path": model.backbone.name}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapters.file_tensors(GENERIC), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
