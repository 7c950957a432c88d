# SPDX-License-Identifier: Apache-2.0
"""Shared parts of learners of reports of single images: a round of batches, its loss terms, drafts and tests.

A method adds its model, its optimiser and the loss of a batch.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from medflare.core.data_order import batches, derived_seed
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.task_progress import with_progress
from medflare.core.update import Update
from medflare.data.images import augment, centre
from medflare.learners.base import BaseLearner, require_finite
from medflare.learners.optim import scale_rates, take_step
from medflare.models.padding import pad
from medflare.models.report_generator import DecodingSettings
from medflare.tasks.reports.evaluation import evaluate_split, finish_site, names_of, split_loss
from medflare.tasks.scoring import AdapterKind


class StepSettings(Protocol):
    """Settings of optimiser steps that this module reads."""

    @property
    def batch(self) -> int: ...

    @property
    def clip_norm(self) -> float | None: ...


class ImageReportSettings(Protocol):
    """Method settings that this module reads."""

    @property
    def optimiser(self) -> StepSettings: ...

    @property
    def decoding(self) -> DecodingSettings: ...

    @property
    def local_epochs(self) -> int: ...

    @property
    def max_report_tokens(self) -> int: ...

    @property
    def augment(self) -> bool: ...

    @property
    def rotation(self) -> float: ...

    @property
    def eval_batch(self) -> int: ...

    @property
    def eval_limit(self) -> int | None: ...

    @property
    def classification(self) -> bool: ...


class ImageReportLearner(BaseLearner):
    """Learner of a model that writes a report for each image.

    Args:
        samples: the site's images and reports, as `split_rows` and `texts` read them.
        model: what learns.
    """

    settings: Any
    model: Any

    def __init__(self, site: str, samples: Any, model: Any, settings: ImageReportSettings, seed: int) -> None:
        self.samples, self.model, self.settings = samples, model, settings
        self.train_rows = self.split_rows("train")
        super().__init__(site, seed, len(self.train_rows))
        self.tokens: list[list[int]] = model.tokenise(self.texts(), settings.max_report_tokens)

    # ---- what a method adds ------------------------------------------------------------------------------

    @abstractmethod
    def round_optimiser(self) -> torch.optim.Optimizer:
        """Return the optimiser of this round: a new one, or one that lives for all rounds."""

    @abstractmethod
    def rate(self, plan: RoundPlan, progress: float) -> float:
        """Return the rate's factor at `progress` in [0, 1] of a round."""

    def batch_losses(self, rows: list[int], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the terms of a batch's loss; `loss` is what a step goes down."""
        return {"loss": self.model.report_loss(*self._load(rows, generator))}

    def live(self) -> dict[str, Tensor]:
        shared: dict[str, Tensor] = self.model.shared_tensors()
        return shared

    # ---- the site's examples -----------------------------------------------------------------------------

    def split_rows(self, split: str) -> list[int]:
        """Return the examples of a split."""
        rows: list[int] = self.samples.split_indices(split)
        return rows

    def texts(self) -> list[str]:
        """Return the report of each example."""
        reports: list[str] = self.samples.reports
        return reports

    def rows_loss(self, rows: list[int]) -> float:
        """Return the mean negative log-likelihood per report token."""
        return split_loss(self, rows)

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round; `val_loss` (VG-4, VG-5) where the site has validation images."""
        started = time.monotonic()
        seed = derived_seed(self.seed, self.site, plan.round)
        batch = min(self.settings.optimiser.batch, max(len(self.train_rows), 1))
        cut = batches(self._round_rows(plan), [len(t) for t in self.tokens], batch, seed)
        self.terms.begin(plan)
        metrics = self._train(cut, plan, seed) | {"steps": float(len(cut))}
        output = self.terms.finish()
        if held_out := self.split_rows("val"):
            metrics["val_loss"] = self.rows_loss(held_out)
        metrics |= output.metrics | {"seconds": time.monotonic() - started}
        return Update(
            delta=self.delta(),
            examples=len(self.train_rows),
            metrics=metrics,
            sums=output.sums,
            factor=output.factor,
        )

    def _round_rows(self, plan: RoundPlan) -> list[int]:
        """Return the training images that this round visits."""
        batch, epochs = self.settings.optimiser.batch, self.settings.local_epochs
        taken = self.round_examples(plan, len(self.train_rows), batch, epochs, record="image")
        return [self.train_rows[i] for i in taken]

    def _train(self, cut: list[list[int]], plan: RoundPlan, seed: int) -> dict[str, float]:
        """Take one step on each batch; the means of the loss terms."""
        optimiser = self.round_optimiser()
        self.terms.watch(optimiser, len(cut))
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model.train()
        means: dict[str, float] = defaultdict(float)
        for step, rows in enumerate(with_progress(cut)):
            scale_rates(optimiser, self.rate(plan, step / len(cut)))
            losses = self.batch_losses(rows, generator)
            require_finite(losses["loss"], setting="settings.optimiser.lr", records="images", site=self.site)
            take_step(optimiser, losses["loss"], self.settings.optimiser.clip_norm)
            self.after_step()
            for name, value in losses.items():
                means[name] += value.item() / len(cut)
        self.model.eval()
        return dict(means)

    def after_step(self) -> None:
        """Follow the weights after a step."""

    def _load(self, rows: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return images (B, 1, s, s), report ids (B, T) and targets (B, T) of one batch, on the device."""
        stored, size = self.samples.images(rows), self.model.settings.encoder.image_size
        images = (
            augment(stored, size, self.settings.rotation, generator)
            if self.settings.augment
            else centre(stored, size)
        )
        reports, targets = pad([self.tokens[i] for i in rows])
        device = self.model.device
        return images.to(device), reports.to(device), targets.to(device)

    # ---- evaluation --------------------------------------------------------------------------------------

    def adapters(self) -> dict[AdapterKind, Callable[[], None]]:
        """Return what puts each adapter into use: nothing, the shared model always is."""
        return {"generic": lambda: None}

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        return evaluate_split(self, split, plan)

    def metric_names(self) -> MetricNames:
        return names_of(self)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return finish_site(self, folder, plan.limit)
