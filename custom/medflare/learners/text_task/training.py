# SPDX-License-Identifier: Apache-2.0
"""One round of local training of a text model, by transformers' Trainer.

Every round starts a new optimiser and, unless the settings say otherwise, a new cosine, as the released code
of Fed-MedLoRA does.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from medflare.core.errors import UpdateError
from medflare.core.seeds import GENERATOR
from medflare.core.task_progress import report_progress
from medflare.learners.base import require_finite
from medflare.learners.client_terms import Watch, no_watch
from medflare.learners.optim import CosinePart
from medflare.learners.text_task.data_parallel import share_of, sum_gradients, sum_over_ranks, world_size
from medflare.learners.text_task.settings import OptimiserSettings
from medflare.models.layer_placement import gpus_of
from medflare.models.recomputation import recomputes_activations
from medflare.models.text_model import Sequenced, TextModel


class RoundTrainer(Trainer):
    """Trainer over batches that were cut before, with the loss on answers alone.

    Precision and device are the backbone's own, so that a site's settings count and not Trainer's guess.
    """

    def __init__(
        self,
        text: TextModel,
        batches: Sequence[Sequence[Sequenced]],
        args: TrainingArguments,
        site: str,
        part: CosinePart,
        watch: Watch = no_watch,
    ) -> None:
        self.text, self.batches, self.site, self.watch = text, list(batches), site, watch
        self.part = part
        super().__init__(model=text.adapters.peft, args=args)
        self.remove_callback(PrinterCallback)
        self.add_callback(AfterStep(text.adapters))
        self.losses: list[float] = []
        self.tokens = 0

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.batches, batch_size=None, collate_fn=lambda batch: {"batch": batch})  # type: ignore[arg-type]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the optimiser; client terms watch it inside what accelerate wraps around it."""
        new = self.optimizer is None
        optimiser: torch.optim.Optimizer = super().create_optimizer(model)
        if new:
            self.watch(optimiser, self.args.max_steps)
        return optimiser

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the rate: Trainer's own cosine, or the round's part of the run's."""
        if self.part.is_whole:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            optimiser = optimizer or self.optimizer
            assert optimiser is not None, "Trainer makes the optimiser first"
            rate = lambda step: self.part.factor(step / num_training_steps)  # noqa: E731
            self.lr_scheduler = LambdaLR(optimiser, rate)
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: dict[str, Any], *unused: Any, **also_unused: Any) -> Tensor:
        """Return the mean over the answers' tokens of a batch, or this process's part of it."""
        rows, weight = share_of(inputs["batch"])
        summed, answers = self.text.loss(rows)
        summed = summed * weight
        found = torch.tensor([summed.item(), answers * weight], dtype=torch.float64, device=self.text.device)
        total, count = sum_over_ranks(found).tolist()
        loss = torch.tensor(total / max(count, 1))
        require_finite(loss, setting="settings.optimiser.lr", records="notes", site=self.site)
        self.losses.append(loss.item())
        self.tokens += int(count)
        return summed / max(count, 1) + self.text.adapters.penalty() / world_size()

    def training_step(self, *inputs: Any, **options: Any) -> Tensor:
        """Do a forward and backward pass; the gradients of several processes are summed before a step."""
        if world_size() == 1:
            return super().training_step(*inputs, **options)
        learning = [p for p in self.text.adapters.peft.parameters() if p.requires_grad]
        before = [p.grad for p in learning]  # of earlier batches of the same step, summed already
        for parameter in learning:
            parameter.grad = None
        loss = super().training_step(*inputs, **options)
        sum_gradients(learning)
        for parameter, earlier in zip(learning, before, strict=True):
            if earlier is not None and parameter.grad is not None:
                parameter.grad += earlier
        return loss


class AfterStep(TrainerCallback):
    """Let adapters act on a finished step while its gradients are there."""

    def __init__(self, adapters: Any) -> None:
        self.adapters = adapters

    def on_optimizer_step(self, *unused: Any, **also_unused: Any) -> None:
        self.adapters.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        report_progress("steps", state.global_step, state.max_steps)


def train_round(
    model: TextModel,
    batches: Sequence[Sequence[Sequenced]],
    settings: OptimiserSettings,
    seed: int,
    site: str,
    part: CosinePart,
    watch: Watch = no_watch,
) -> dict[str, float]:
    """Train whatever adapters are set to learn on `batches` in their order, once.

    Args:
        site: named in errors.
        part: of the cosine.
        watch: shown the optimiser before the first step.

    Returns:
        `loss` (mean of the batches' token means), `steps`, `tokens`.

    Raises:
        UpdateError: there is no batch, or a loss or a trained factor is not finite.
    """
    if not batches:
        raise UpdateError("there is no training example, so there is nothing to learn in this round.")
    steps = math.ceil(len(batches) / settings.accumulate)
    if settings.gradient_checkpointing and not recomputes_activations(model.backbone.model):
        model.checkpoint_gradients()
    with exclusive_generators(gpus_of(model.adapters.peft)), tempfile.TemporaryDirectory() as folder:
        arguments = _arguments(folder, model, settings, part, steps, seed)
        trainer = RoundTrainer(model, batches, arguments, site, part, watch)
        trainer.train()
    _check_finite(model, settings)
    return {
        "loss": sum(trainer.losses) / len(trainer.losses),
        "steps": float(steps),
        "tokens": float(trainer.tokens),
    }


@contextlib.contextmanager
def exclusive_generators(gpus: Sequence[int]) -> Iterator[None]:
    """Run one training of this process at a time, and leave everybody's random numbers as they were.

    Trainer seeds the generators of Python, numpy and torch, which are the process's: sites that are threads
    of one process would draw their dropout from each other's.
    """
    with GENERATOR, torch.random.fork_rng(devices=gpus):
        before = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _check_finite(model: TextModel, settings: OptimiserSettings) -> None:
    """Refuse trained values that are not finite: after the last step there is no loss that would show it."""
    learned = [p for p in model.adapters.peft.parameters() if p.requires_grad]
    if not all(bool(torch.isfinite(p).all()) for p in learned):
        raise UpdateError(
            "training left values in the adapter that are not finite; nothing of this round was kept. Lower "
            f"settings.optimiser.lr, which is {settings.lr:g}."
        )


def _arguments(
    folder: str, model: TextModel, settings: OptimiserSettings, part: CosinePart, steps: int, seed: int
) -> TrainingArguments:
    args = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=round(part.warmup * steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_norm,
        optim="adamw_torch",
        use_cpu=model.device.type == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        seed=seed % 2**31,
    )
    args._n_gpu = min(args._n_gpu, 1)  # a site's worker has one device; no DataParallel
    return args
