# SPDX-License-Identifier: Apache-2.0
"""Training on the records of a text task, whatever the model: a round, weights by influence, scores.

Training follows Fed-MedLoRA; weights by influence: ML-4, ML-8, ML-15.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from medflare.core.data_order import DataOrder, batches, derived_seed, drawn
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SharedRecords, SiteDescription
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.cohort import Cohort
from medflare.learners.base import BaseLearner
from medflare.learners.optim import CosinePart
from medflare.learners.text_task.influence import SelfInfluence
from medflare.learners.text_task.settings import RecordsSettings
from medflare.learners.text_task.validation_texts import Known, digest_of, none_shared
from medflare.tasks.scoring import AdapterKind, ScoredSite, TextRecords


class TrainingRow(Protocol):
    """A question with its answer as the model sees it."""

    @property
    def ids(self) -> Sequence[int]: ...


SettingsT = TypeVar("SettingsT", bound=RecordsSettings)
Record = TypeVar("Record")
Row = TypeVar("Row", bound=TrainingRow)


class RecordsLearner(BaseLearner, Generic[SettingsT, Record, Row]):
    """A learner but for its task and its model.

    Args:
        validation: D_v, the records every site has, for rule `influence` in client mode (ML-15).

    Attributes:
        RECORDS: how records are predicted and scored.
        FILE: name of the file beside a result's adapter, without its ending.
        BLOCK, EXPORTED: the block in that file, and the settings that a reader of the result needs in it.
        paper: the paper's own counts, for the record.
        model: of the site, with its backbone's name and fingerprint.
        predictor: what answers with the weights as they are.
        shared_rows: questions about D_v.
        lost: reason -> how many records or marks could not be learned from.
    """

    RECORDS: ClassVar[TextRecords[Any, Any, Any]]
    FILE: ClassVar[str]
    BLOCK: ClassVar[str]
    EXPORTED: ClassVar[frozenset[str]]
    paper: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        site: str,
        cohort: Cohort,
        settings: SettingsT,
        seed: int,
        validation: Cohort | None = None,
    ) -> None:
        self.site, self.cohort, self.settings = site, cohort, settings
        self.predictor = self.make_predictor()
        self.train_rows, lost = self.training_rows()
        self.val_rows, lost_too = self.rows_of(self.records("val"))
        self.lost = lost + lost_too
        self.validation = [] if validation is None else list(self.RECORDS.records(validation))
        self.shared_rows, _ = self.rows_of(self.validation)
        super().__init__(site, seed, len(self.train_rows))

    def records(self, split: str) -> list[Record]:
        """Return the site's records of one split."""
        return self.RECORDS.of_split(self.cohort, split)

    def training_rows(self) -> tuple[Sequence[Row], Counter[str]]:
        """Return the rows to learn from, as `rows_of`."""
        return self.rows_of(self.records("train"))

    def learn_from(self, cohort: Cohort) -> None:
        """Take the training records of another cohort in place of the site's, as an audit's shadows do."""
        self.cohort = cohort
        self.train_rows, self.lost = self.training_rows()
        self.order = DataOrder(max(len(self.train_rows), 1), self.order.seed)

    @property
    def training_examples(self) -> int:
        """Number of examples of an update, by which it is weighted."""
        return len(self.train_rows)

    # ---- what a task adds --------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def known(record: Any) -> Known:
        """Return by what a record of the shared validation data is recognised among a site's own."""

    @staticmethod
    @abstractmethod
    def facts(record: Any) -> list[Any]:
        """Return what of a record the loss on it depends on, as JSON types."""

    @abstractmethod
    def make_predictor(self) -> Any:
        """Return what answers with the weights as they are."""

    @abstractmethod
    def rows_of(self, records: Sequence[Record]) -> tuple[Sequence[Row], Counter[str]]:
        """Return questions with their answers, and what of the records no row holds: reason -> count."""

    @abstractmethod
    def quality(self, records: Sequence[Record]) -> dict[str, float]:
        """Return point scores of some records with the weights as they are, for the curves of a run."""

    # ---- what a model adds -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def backbone(self) -> Any:
        """The model that the run began with, as `BackboneFacts.of` takes it."""

    @abstractmethod
    def parameters(self) -> dict[str, int]:
        """Return how many numbers are communicated, by part."""

    @abstractmethod
    def mean_loss(self, rows: Sequence[Row]) -> float:
        """Return the mean loss of rows with the weights as they are."""

    @abstractmethod
    def train(self, batches: Sequence[Sequence[Row]], seed: int, part: CosinePart) -> dict[str, float]:
        """Train once on each batch, with a new AdamW; return `loss`, `steps` and what was counted.

        Args:
            part: what the round has of the cosine.
        """

    def use(self) -> None:
        """Let the site's adapter compute."""

    def begin_round(self, plan: RoundPlan) -> None:
        """Take what the round's plan holds for the adapter."""

    def round_sums(self) -> State:
        """Return the auxiliary sums of the model's own."""
        return {}

    def adapter_config(self) -> dict[str, Any]:
        """Return PEFT's configuration; empty without an adapter."""
        return {}

    @property
    def adapter_kind(self) -> AdapterKind:
        """The adapter that the site tests: the shared one, or with tensors of its own a personalised one."""
        return "generic"

    def write_own_adapter(self, folder: Path) -> None:
        """Write a personalised adapter into `folder`, if there is one."""

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        skipped = Counter(item.reason for item in self.cohort.skipped) + self.lost
        config = self.adapter_config()
        return SiteDescription(
            backbone=BackboneFacts.of(self.backbone),
            parameters=self.parameters(),
            export=self.export(),
            examples={
                "train": self.training_examples,
                "val": len(self.val_rows),
                "test": len(self.records("test")),
            },
            skipped=dict(skipped),
            paper=dict(self.paper),
            validation=self.shared_records(),
            **({"adapter_config": config} if config else {}),
        )

    def export(self) -> dict[str, Any]:
        """Return what a reader needs besides the weights, `<FILE>.json` of a result."""
        return {
            "file": self.FILE,
            "format": 1,
            self.BLOCK: self.settings.model_dump(mode="json", include=set(self.EXPORTED)),
            "backbone": {"name": self.backbone.name, "fingerprint": self.backbone.fingerprint},
        }

    def shared_records(self) -> SharedRecords | None:
        """Return count and digest of D_v, which the server compares between sites; None without any."""
        return digest_of([self.facts(record) for record in self.validation])

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round; AdamW starts anew, and its cosine unless the settings say otherwise."""
        started = time.monotonic()
        self.begin_round(plan)
        self.use()
        influence = SelfInfluence(plan.hints.influence, self._shared_loss)
        metrics = self.train_round(plan, derived_seed(self.seed, self.site, plan.round))
        output = self.terms.finish()
        self.use()
        factor, measured = influence.measure(output.factor)
        metrics |= measured | output.metrics | {"seconds": time.monotonic() - started}
        sums = output.sums | self.round_sums()
        examples = self.training_examples
        return Update(delta=self.delta(), examples=examples, metrics=metrics, sums=sums, factor=factor)

    def train_round(self, plan: RoundPlan, seed: int) -> dict[str, float]:
        """Train on the rows that this round visits, cut into batches; return what `train` returns."""
        rows, size = self.train_rows, self.settings.optimiser.batch
        cut = batches(self._round_rows(plan), [len(row.ids) for row in rows], size, seed)
        self.terms.begin(plan)
        cosine = self.settings.optimiser.cosine_part(plan)
        return self.train([[rows[i] for i in batch] for batch in cut], seed, cosine)

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Return the training rows that this round visits."""
        chosen = self.settings
        return self.round_examples(
            plan, len(self.train_rows), chosen.optimiser.step_size, chosen.local_epochs
        )

    def _shared_loss(self) -> float:
        """Return the mean loss on D_v (ML-4) with the weights as they are."""
        if not self.shared_rows:
            raise none_shared(self.site)
        return self.mean_loss(self.shared_rows)

    # ---- quality -----------------------------------------------------------------------------------------

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        self.use()
        rows = self._rows(split)
        if count := plan.hints.probe:
            rows = drawn(rows, count, self.seed, self.site, plan.round)
        loss = Metrics({"loss": self.mean_loss(rows)}, len(rows)) if rows else Metrics()
        records = self.records(split)[: self.settings.eval_limit if plan.limit is None else plan.limit]
        if plan.hints.loss_only or plan.hints.probe or not records:
            return loss
        return loss.joined(Metrics(self.quality(records), len(records)))

    def _rows(self, split: str) -> Sequence[Row]:
        if split == "test":  # made anew, as they are needed rarely
            return self.rows_of(self.records("test"))[0]
        return self.train_rows if split == "train" else self.val_rows

    def metric_names(self) -> MetricNames:
        tested = {self.adapter_kind: self.RECORDS.metrics}
        return MetricNames(validation=["loss", *self.RECORDS.quick], tested=tested)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        self.use()
        self.write_own_adapter(folder)
        tested = ScoredSite(self.site, "participant", self.adapter_kind, folder, self.seed)
        records = self.records("test")[: plan.limit]
        return [self.RECORDS.score(self.predictor, records, tested, self.scorers)] if records else []
