# SPDX-License-Identifier: Apache-2.0
"""FedMRG at one site: hierarchical contrasting and prompting, dual adapters that teach each other.

Paper: FedMRG, Algorithm 1 and sections III-B to III-D, resolutions MRG-1 to MRG-19.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from medflare.core.data_order import batches, derived_seed
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.optimiser_state import moments, restore_moments
from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.secure_random import secret_seed
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.task_progress import with_progress
from medflare.core.tensors import SharedSpec, State, without_prefix
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.images import augment, centre
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.differential_privacy.private_step import PrivateTraining
from medflare.learners.base import BaseLearner, in_parts
from medflare.learners.client_terms.base import Shared
from medflare.learners.fedmrg.memory_bank import MemoryBank
from medflare.learners.fedmrg.private_training import private_module, summed_loss
from medflare.learners.fedmrg.settings import METHOD, FedMRGSettings
from medflare.learners.fedmrg.training import Batch, DualAdapterTraining
from medflare.learners.optim import cosine, scale_rates
from medflare.learners.private_round import PrivateImages
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.backbone import device_of, load_backbone
from medflare.models.padding import pad
from medflare.models.report_generator import (
    ADAPTER_PREFIX,
    ReportGenerator,
    export_settings,
    parameter_counts,
)
from medflare.tasks.reports.evaluation import evaluate_split, finish_site, names_of, write_personalised
from medflare.tasks.scoring import AdapterKind

PAPER = {
    "configuration": "ResNet-101, Llama-2-7B, LoRA of rank 16 on q and v projections",
    "encoder": 42_500_160,
    "projection": 8_392_704,
    "adapter": 8_388_608,
    "total": 59_281_472,
    "bytes_fp32_per_direction": 237_125_888,
}
"""The paper's communicated parameters, which tests/unit/models/test_parameter_counts.py counts again."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> FedMRGLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    device = device_of(site.device)
    torch.set_num_threads(site.threads)
    samples = open_samples(site, chosen.model.encoder.stored_size, cache)
    backbone = load_backbone(site.backbone.folder, site.backbone.precision, device)
    names = (GENERIC, ANCHOR, SPECIALISED) if chosen.dual else (GENERIC,)
    model = ReportGenerator(backbone, chosen.model, names, seed, site.encoder_weights).to(device)
    return FedMRGLearner(site.name, samples, model, chosen, seed, site.policy.min_prototype)


class FedMRGLearner(BaseLearner):
    """FedMRG at one site.

    Attributes:
        bank: negatives from other sites for the contrastive loss.
        training: both optimiser steps of a mini-batch, and the optimisers.
    """

    def __init__(
        self,
        site: str,
        samples: Samples,
        model: ReportGenerator,
        settings: FedMRGSettings,
        seed: int,
        min_prototype: int = 1,
    ) -> None:
        self.samples, self.model, self.settings = samples, model, settings
        self.train_rows = samples.split_indices("train")
        super().__init__(site, seed, len(self.train_rows))
        # A queue as long as the training split would contrast an image with its own features of last round.
        queue = max(min(settings.bank_rows, len(self.train_rows) - settings.batch), 0)
        kept = queue if settings.memory_bank == "local_queue" else settings.bank_rows
        k_min = max(settings.k_min, min_prototype)
        self.bank = MemoryBank(settings.memory_bank, model.encoder.width, kept, k_min)
        self.tokens = model.tokenise(samples.reports, settings.max_report_tokens)
        self.training = DualAdapterTraining(site, model, settings, self.bank)
        self.private: PrivateImages | None = None
        if settings.dp is not None:
            self.private = PrivateImages.of(samples, self.train_rows, settings.dp, passes=1)
            self.private.check(private_module(model, settings))
            model.eval()

    @property
    def patient_privacy(self) -> PatientPrivacy | None:
        return None if self.private is None else self.private.privacy

    # ---- what is declared --------------------------------------------------------------------------------

    def describe(self) -> SiteDescription:
        model = self.model
        return SiteDescription(
            backbone=BackboneFacts.of(model.backbone),
            parameters=parameter_counts(model, GENERIC),
            adapter_config=model.adapters.config_dict() | {"base_model_name_or_path": model.backbone.name},
            export=export_settings(model, self.settings.decoding),
            examples=self.samples.examples(),
            skipped=self.samples.skipped(),
            heterogeneity=site_facts(self.samples.studies),
            paper=PAPER,
        )

    def sums_spec(self, sites: int) -> SharedSpec:
        return self.bank.sums_spec(sites) | self.model.adapters.auxiliary_sums_spec()

    def initial_shared(self) -> State:
        shared = {n: t.detach().cpu().clone() for n, t in self.model.shared_tensors().items()}
        return shared | {ADAPTER_PREFIX + n: t for n, t in self.model.adapters.state(GENERIC).items()}

    def live(self) -> Shared:
        adapter = self.model.adapters.shared_parameters(GENERIC)
        return self.model.shared_tensors() | {ADAPTER_PREFIX + n: p for n, p in adapter.items()}

    @torch.no_grad()
    def _put_shared(self, state: State) -> None:
        """The anchor of A_s is the generic adapter as received, for the whole round (Eq. 5)."""
        for name, tensor in self.model.shared_tensors().items():
            tensor.copy_(state[name])
        adapter = without_prefix(state, ADAPTER_PREFIX)
        self.model.adapters.load(GENERIC, adapter)
        if self.settings.dual:
            self.model.adapters.load(ANCHOR, adapter)

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one round: a slice of the data, one or two optimiser steps on each mini-batch."""
        if self.private is not None:
            return self._fit_privately(self.private, plan)
        started = time.monotonic()
        self.bank.receive(plan)
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.terms.begin(plan)
        examples = self.round_examples(plan, len(self.train_rows), self.settings.batch, 1, "image")
        rows = [self.train_rows[i] for i in examples]
        seed = derived_seed(self.seed, self.site, plan.round)
        batch = min(self.settings.batch, len(self.train_rows))
        cut = batches(rows, [len(t) for t in self.tokens], batch, seed)
        metrics = self._train(cut, plan, seed)
        output = self.terms.finish()
        metrics |= output.metrics
        metrics |= {"seconds": time.monotonic() - started, "steps": float(len(cut))}
        delta, n = self.delta(), len(self.train_rows)
        sums = self._bank_sums(plan) | output.sums | self.model.adapters.auxiliary_sums(n)
        return Update(delta=delta, examples=n, metrics=metrics, sums=sums, factor=output.factor)

    def _fit_privately(self, private: PrivateImages, plan: RoundPlan) -> Update:
        """Train one round with differential privacy (`private_training`)."""
        s, optimiser = self.settings, self.training.shared_optimiser
        generator = torch.Generator().manual_seed(secret_seed())  # why: `train_private_round`

        def begin_step(step: int, of: int) -> None:
            scale_rates(optimiser, cosine((plan.round + step / of) / max(plan.rounds, 1), s.warmup))

        training = PrivateTraining(
            module=private_module(self.model, s),
            patients=private.rows.of_site(self.site),
            loss=summed_loss(self.training, lambda rows: self._load(rows, generator), generator),
            chunk=s.batch,
            optimiser=optimiser,
            begin_step=begin_step,
        )
        return private.fit(self, plan, training, f"settings.lr, which is {s.lr:g}")

    def _train(self, cut: list[list[int]], plan: RoundPlan, seed: int) -> dict[str, float]:
        """Train on each mini-batch in turn; the means of the loss terms."""
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model.train()
        training = self.training
        # Client terms follow the shared optimiser, which steps twice a batch where step 2 moves it as well.
        twice = training.local_optimiser is not None and self.settings.encoder_update != "first"
        self.terms.watch(training.shared_optimiser, len(cut) * (2 if twice else 1))
        means: dict[str, float] = defaultdict(float)
        for step, rows in enumerate(with_progress(cut)):
            factor = cosine((plan.round + step / len(cut)) / max(plan.rounds, 1), self.settings.warmup)
            for optimiser in training.optimisers():
                scale_rates(optimiser, factor)
            for name, value in training.train_batch(self._load(rows, generator), generator).items():
                means[name] += value / len(cut)
        return dict(means)

    def _load(self, rows: list[int], generator: torch.Generator) -> Batch:
        """Return one mini-batch on the device, with one view of each image or two."""
        s, device = self.settings, self.model.device
        stored = self.samples.images(rows).to(device)
        size = s.model.encoder.image_size
        views = [augment(stored, size, s.rotation, generator) for _ in range(2 if s.contrasts else 1)]
        reports, targets = pad([self.tokens[i] for i in rows])
        codes = self.samples.codes[rows]
        return Batch(torch.cat(views), targets.to(device), reports.to(device), codes.to(device))

    def _bank_sums(self, plan: RoundPlan) -> State:
        """Return the bank's contribution, from training images under the encoder as trained (MRG-4)."""
        if not self.bank.sums_spec(1):
            return {}
        limit = self.settings.bank_rows if self.bank.mode == "raw" else self.settings.bank_sample
        generator = np.random.default_rng(derived_seed(self.seed, self.site, plan.round, "bank"))
        rows = [self.train_rows[i] for i in sorted(generator.permutation(len(self.train_rows))[:limit])]
        features = [torch.zeros(0, self.bank.width)]
        with torch.no_grad(), self.model.evaluating():
            for part in in_parts(rows, self.settings.eval_batch):
                stored = self.samples.images(part)
                images = centre(stored, self.settings.model.encoder.image_size).to(self.model.device)
                pooled = self.model.encode_images(images).pooled  # (B, C)
                features.append(F.normalize(pooled, dim=1).cpu())
        return self.bank.contribution(torch.cat(features), self.samples.codes[rows], plan)

    # ---- evaluation and what stays -----------------------------------------------------------------------

    def use_generic(self) -> None:
        """Decode with A_g alone: what an unseen site has."""
        self.model.adapters.use((GENERIC,))

    def use_personalised(self) -> None:
        """Decode with γ ΔW_g + (1−γ) ΔW_s, where the anchor is A_g as it is now (Eq. 6; MRG-8)."""
        self.model.adapters.use(
            (GENERIC, SPECIALISED), scales=dict(zip((GENERIC, SPECIALISED), self.mix(), strict=True))
        )

    def adapters(self) -> dict[AdapterKind, Callable[[], None]]:
        """Return, by name, what puts each adapter into use."""
        adapters: dict[AdapterKind, Callable[[], None]] = {"generic": self.use_generic}
        if self.settings.dual:
            adapters["personalised"] = self.use_personalised
        return adapters

    def mix(self) -> tuple[float, float]:
        """Return the weights of ΔW_g and ΔW_s at inference.

        They are (1, 1−γ) for `combine: sum`, ((1+γ)/2, (1−γ)/2) for `mean`.
        """
        gamma = self.settings.gamma_mix
        return (1.0, 1 - gamma) if self.settings.combine == "sum" else ((1 + gamma) / 2, (1 - gamma) / 2)

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        self.use_generic()
        return evaluate_split(self, split, plan)

    def metric_names(self) -> MetricNames:
        return names_of(self)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        records = finish_site(self, folder, plan.limit)
        if self.settings.dual:
            write_personalised(self, folder / "personalised")
        return records

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors, values = super().local_state()
        training = self.training
        tensors = moments(training.shared_optimiser, "shared") | self.bank.state() | tensors
        tensors |= {f"local.{n}": b.detach().cpu().clone() for n, b in self.model.local_buffers().items()}
        if training.local_optimiser is not None:
            tensors |= moments(training.local_optimiser, "own")
            tensors |= {f"specialised.{n}": t for n, t in self.model.adapters.state(SPECIALISED).items()}
        return tensors, values

    @torch.no_grad()
    def _restore(self, tensors: State) -> None:
        self.bank.restore(tensors)
        restore_moments(self.training.shared_optimiser, tensors, "shared")
        for name, buffer in self.model.local_buffers().items():
            buffer.copy_(tensors[f"local.{name}"])
        if self.training.local_optimiser is not None:
            restore_moments(self.training.local_optimiser, tensors, "own")
            self.model.adapters.load(SPECIALISED, without_prefix(tensors, "specialised."))
