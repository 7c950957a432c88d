# SPDX-License-Identifier: Apache-2.0
"""FedMRG at one site: hierarchical contrasting and prompting, dual adapters that teach each other.

Paper: FedMRG, Algorithm 1 and sections III-B to III-D, resolutions MRG-1 to MRG-19.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.data_order import DataOrder, batches, derived_seed, examples_to_visit
from medflare.core.errors import UpdateError
from medflare.core.optimiser_state import moments, restore_moments
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.images import augment, centre
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.learners.client_terms import ClientTerms
from medflare.learners.fedmrg import losses
from medflare.learners.fedmrg.memory_bank import MemoryBank
from medflare.learners.fedmrg.settings import METHOD, FedMRGSettings
from medflare.learners.optim import adamw, cosine, scale_rates
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.backbone import device_of, load_backbone
from medflare.models.padding import pad
from medflare.models.report_generator import (
    ADAPTER_PREFIX,
    Decoded,
    ReportGenerator,
    VisualFeatures,
    export_settings,
    parameter_counts,
)
from medflare.tasks.reports.evaluation import (
    curve_metrics,
    finish_site,
    probe_loss,
    write_personalised,
)
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
    """The learner of a site, from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    device = device_of(site.device)
    torch.set_num_threads(site.threads)
    samples = open_samples(site, chosen.model.encoder.stored_size, cache)
    backbone = load_backbone(site.backbone.folder, site.backbone.precision, device)
    names = (GENERIC, ANCHOR, SPECIALISED) if chosen.dual else (GENERIC,)
    model = ReportGenerator(backbone, chosen.model, names, seed, site.encoder_weights).to(device)
    return FedMRGLearner(site.name, samples, model, chosen, seed)


@dataclass(slots=True)
class Batch:
    """views: (N or 2N, 1, s, s), all first views before all second ones; targets, reports: (N, T) token ids,
    targets IGNORED at the padding; codes: (N, 14)."""

    views: Tensor
    targets: Tensor
    reports: Tensor
    codes: Tensor


class FedMRGLearner:
    """Implements `learners.base.Learner`. One object lives for all rounds of a run."""

    def __init__(
        self, site: str, samples: Samples, model: ReportGenerator, settings: FedMRGSettings, seed: int
    ) -> None:
        self.site, self.samples, self.model, self.settings, self.seed = site, samples, model, settings, seed
        self.train_rows = samples.split_indices("train")
        self.order = DataOrder(max(len(self.train_rows), 1), derived_seed(seed, site, "order"))
        queue = max(min(settings.bank_rows, len(self.train_rows) - settings.batch), 0)
        kept = queue if settings.bank == "local_queue" else settings.bank_rows
        self.bank = MemoryBank(settings.bank, model.encoder.width, kept, settings.k_min)
        self.tokens = model.tokenise(samples.reports, settings.max_report_tokens)
        encoder = [p for p in model.encoder.parameters()] if settings.encoder_lr_scale > 0 else []
        if not encoder:
            model.encoder.requires_grad_(False)
        self.shared_optimiser = adamw(
            [
                (model.body() + model.adapters.parameters(GENERIC), settings.lr),
                (encoder, settings.lr * settings.encoder_lr_scale),
            ],
            settings.weight_decay,
        )
        self.local_optimiser = (
            adamw(
                [(model.adapters.parameters(SPECIALISED), settings.lr * settings.specialised_lr_scale)],
                settings.weight_decay,
            )
            if settings.dual
            else None
        )
        self.terms = ClientTerms(site, self._live)
        self._received: State = {}
        self._spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.initial_shared().items()}

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
            settings=self.settings.model_dump(mode="json"),
            paper=PAPER,
        )

    def shared_spec(self) -> SharedSpec:
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        return self.bank.sums_spec(sites) | self.model.adapters.auxiliary_sums_spec()

    def initial_shared(self) -> State:
        shared = {n: t.detach().cpu().clone() for n, t in self.model.shared_tensors().items()}
        return shared | {ADAPTER_PREFIX + n: t for n, t in self.model.adapters.state(GENERIC).items()}

    def _live(self) -> dict[str, Tensor]:
        """The shared tensors themselves."""
        adapter = self.model.adapters.shared_parameters(GENERIC)
        return self.model.shared_tensors() | {ADAPTER_PREFIX + n: p for n, p in adapter.items()}

    def load_shared(self, state: State) -> None:
        check_state(state, self._spec, f"site '{self.site}': the server's state")
        with torch.no_grad():
            for name, tensor in self.model.shared_tensors().items():
                tensor.copy_(state[name])
        adapter = {n[len(ADAPTER_PREFIX) :]: t for n, t in state.items() if n.startswith(ADAPTER_PREFIX)}
        self.model.adapters.load(GENERIC, adapter)
        if self.settings.dual:
            self.model.adapters.load(ANCHOR, adapter)
        self._received = self.initial_shared()

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """One round at this site (2.3): a slice of the data, two optimiser steps per mini-batch."""
        started = time.monotonic()
        self.bank.receive(plan)
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.terms.begin(plan)
        visits = examples_to_visit(plan, len(self.train_rows), self.settings.batch)
        rows = [self.train_rows[i] for i in self.order.take(visits)]
        round_seed = derived_seed(self.seed, self.site, plan.round)
        batch = min(self.settings.batch, max(len(self.train_rows), 1))
        cut = batches(rows, [len(t) for t in self.tokens], batch, round_seed)
        generator = torch.Generator().manual_seed(round_seed)
        torch.manual_seed(round_seed)
        self.model.train()
        both = self.local_optimiser is not None and self.settings.encoder_update == "both"
        self.terms.watch(self.shared_optimiser, len(cut) * (2 if both else 1))
        sums: dict[str, float] = defaultdict(float)
        for step, part in enumerate(cut):
            factor = cosine((plan.round + step / len(cut)) / max(plan.rounds, 1), self.settings.warmup)
            for optimiser in filter(None, (self.shared_optimiser, self.local_optimiser)):
                scale_rates(optimiser, factor)
            for name, value in self._batch(part, generator).items():
                sums[name] += value / len(cut)
        told = self.terms.finish()
        metrics = dict(sums) | told.metrics
        metrics |= {"seconds": time.monotonic() - started, "steps": float(len(cut))}
        after = self.initial_shared()
        delta = {n: after[n].float() - self._received[n].float() for n in after}
        n = len(self.train_rows)
        more = self._bank_sums(plan) | told.sums | self.model.adapters.auxiliary_sums(n)
        return Update(delta=delta, examples=n, metrics=metrics, sums=more, factor=told.factor)

    def _batch(self, rows: list[int], generator: torch.Generator) -> dict[str, float]:
        """Both steps on one mini-batch; the loss terms as numbers."""
        batch = self._load(rows, generator)
        report: dict[str, float] = {}
        encoded = self.model.encode(batch.views)
        seen, student, prompts = self._generic_step(batch, encoded, generator, report)
        if self.local_optimiser is not None:
            self._specialised_step(batch, encoded, seen, student, prompts, report)
        self.bank.remember(F.normalize(seen.pooled, dim=1))
        return report

    def _generic_step(
        self,
        batch: Batch,
        encoded: tuple[Tensor, Tensor],
        generator: torch.Generator,
        report: dict[str, float],
    ) -> tuple[VisualFeatures, Decoded, Tensor]:
        """Step 1: A_s teaches A_g (l2g). Returns detached outputs and the prompts, for step 2."""
        adapters, s = self.model.adapters, self.settings
        seen, shared_loss = self._see(encoded, batch.codes, report)
        prompts = self._prompt_codes(seen, batch.codes, generator)
        teacher = None
        if s.dual and s.distil_to_generic:
            adapters.use((ANCHOR, SPECIALISED), scales=self._specialised_scales())
            with torch.no_grad():
                teacher = self.model.decode(self.model.prefix(seen.detach(), prompts), batch.reports)
        adapters.use((GENERIC,), train=(GENERIC,))
        student = self.model.decode(self.model.prefix(seen, prompts), batch.reports)
        loss = shared_loss + self._text_loss(student, teacher, batch.targets, "generic", report)
        loss = loss + adapters.penalty()
        self._step(loss, self.shared_optimiser)
        return seen.detach(), Decoded(student.logits.detach(), student.hidden.detach()), prompts

    def _specialised_step(
        self,
        batch: Batch,
        encoded: tuple[Tensor, Tensor],
        seen: VisualFeatures,
        first: Decoded,
        prompts: Tensor,
        report: dict[str, float],
    ) -> None:
        """Step 2: A_g teaches A_s (g2l). With `encoder_update: first` nothing but L_s moves (MRG-12)."""
        assert self.local_optimiser is not None
        shared_loss, optimisers = torch.zeros((), device=self.model.device), [self.local_optimiser]
        if self.settings.encoder_update == "both":
            if self.settings.encoder_lr_scale > 0:
                encoded = self.model.encode(batch.views)
            seen, shared_loss = self._see(encoded, batch.codes, {})
            optimisers.append(self.shared_optimiser)
        teacher = self._second_teacher(first, seen, prompts, batch.reports)
        self.model.adapters.use(
            (ANCHOR, SPECIALISED), train=(SPECIALISED,), scales=self._specialised_scales()
        )
        student = self.model.decode(self.model.prefix(seen, prompts), batch.reports)
        loss = shared_loss + self._text_loss(student, teacher, batch.targets, "specialised", report)
        self._step(loss, *optimisers)

    def _second_teacher(
        self, first: Decoded, seen: VisualFeatures, codes: Tensor, reports: Tensor
    ) -> Decoded | None:
        """A_g's output for step 2: what step 1 computed, or afresh with the stepped weights."""
        if not self.settings.distil_to_specialised:
            return None
        if self.settings.reuse_teacher:
            return first
        self.model.adapters.use((GENERIC,))
        with torch.no_grad():
            return self.model.decode(self.model.prefix(seen.detach(), codes), reports)

    def _see(
        self, encoded: tuple[Tensor, Tensor], codes: Tensor, report: dict[str, float]
    ) -> tuple[VisualFeatures, Tensor]:
        """Projection and head on the encoded views; the image-side losses λ_hcl L_hcl + λ_cls L_CE."""
        s, half = self.settings, len(codes)
        both = self.model.project(*encoded)
        loss = both.logits.sum() * 0.0
        if s.contrasts:
            features = F.normalize(both.pooled, dim=1)
            bank = self.bank.rows().to(features.device)
            hcl = losses.contrastive(features[:half], features[half:], bank, s.tau, s.positive_in_denominator)
            loss, report["loss_hcl"] = loss + s.lambda_hcl * hcl, hcl.item()
        seen = VisualFeatures(both.visual[:half], both.pooled[:half], both.logits[:half])
        if s.classification:
            cls = losses.diagnosis(seen.logits, codes)
            loss, report["loss_cls"] = loss + s.lambda_cls * cls, cls.item()
        return seen, loss

    def _text_loss(
        self, student: Decoded, teacher: Decoded | None, targets: Tensor, name: str, report: dict[str, float]
    ) -> Tensor:
        """L_LM + λ_kd L_kd of one adapter."""
        loss = losses.language(student, targets)
        report["loss" if name == "generic" else f"loss_{name}"] = loss.item()
        if teacher is not None:
            s = self.settings
            kd = losses.distillation(student, teacher, targets, s.kd_temperature, s.kl_direction, s.kd_cosine)
            loss, report[f"loss_kd_{name}"] = loss + s.lambda_kd * kd, kd.item()
        return loss

    def _step(self, loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        """Gradients of what is not in this loss stay None, so that weight decay leaves it alone (MRG-12).

        Raises UpdateError before anything is touched if the loss is not finite: one NaN in L_s, which never
        leaves, would spoil the site for all rounds to come.
        """
        if not torch.isfinite(loss):
            raise UpdateError(
                f"site '{self.site}': the loss is {loss.item()}; nothing of this round was kept. "
                "Lower settings.lr, or look for odd images with `medflare cohort inspect --images`."
            )
        for every in (self.shared_optimiser, self.local_optimiser):
            if every is not None:
                every.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                torch.nn.utils.clip_grad_value_(group["params"], self.settings.clip_value)
            optimiser.step()
        self.model.adapters.after_step()

    def _load(self, rows: list[int], generator: torch.Generator) -> Batch:
        """One mini-batch on the device, with one view of each image or two."""
        s, device = self.settings, self.model.device
        stored = self.samples.images(rows).to(device)
        size = s.model.encoder.image_size
        views = [augment(stored, size, s.rotation, generator) for _ in range(2 if s.contrasts else 1)]
        reports, targets = pad([self.tokens[i] for i in rows])
        codes = self.samples.codes[rows]
        return Batch(torch.cat(views), targets.to(device), reports.to(device), codes.to(device))

    def _prompt_codes(self, seen: VisualFeatures, codes: Tensor, generator: torch.Generator) -> Tensor:
        """Gold codes in training; a share of images prompted by prediction where asked (MRG-16)."""
        if self.settings.prompt_dropout == 0 or not self.settings.model.prompts:
            return codes
        swap = torch.rand(len(codes), generator=generator).to(codes.device) < self.settings.prompt_dropout
        return torch.where(swap[:, None], seen.logits.argmax(-1), codes)

    def _specialised_scales(self) -> dict[str, float]:
        half = 1.0 if self.settings.combine == "sum" else 0.5
        return {ANCHOR: half, SPECIALISED: half}

    def _bank_sums(self, plan: RoundPlan) -> State:
        """The bank's contribution, from training images seen with the just-trained encoder (2.3 step 3)."""
        if not self.bank.sums_spec(1):
            return {}
        limit = self.settings.bank_rows if self.settings.bank == "raw" else self.settings.bank_sample
        drawn = np.random.default_rng(derived_seed(self.seed, self.site, plan.round, "bank"))
        rows = [self.train_rows[i] for i in sorted(drawn.permutation(len(self.train_rows))[:limit])]
        features = [torch.zeros(0, self.bank.width)]
        with torch.no_grad(), self.model.evaluating():
            for start in range(0, len(rows), self.settings.eval_batch):
                stored = self.samples.images(rows[start : start + self.settings.eval_batch])
                images = centre(stored, self.settings.model.encoder.image_size).to(self.model.device)
                features.append(F.normalize(self.model.encode_images(images).pooled, dim=1).cpu())
        return self.bank.contribution(torch.cat(features), self.samples.codes[rows], plan)

    # ---- evaluation and what stays -----------------------------------------------------------------------

    def use_generic(self) -> None:
        """A_g alone: what an unseen site has (2.4)."""
        self.model.adapters.use((GENERIC,))

    def use_personalised(self) -> None:
        """γ ΔW_g + (1−γ) ΔW_s with a refreshed anchor (Eq. 6; MRG-8)."""
        self.model.adapters.use(
            (GENERIC, SPECIALISED), scales=dict(zip((GENERIC, SPECIALISED), self.mix(), strict=True))
        )

    def adapters(self) -> dict[AdapterKind, Callable[[], None]]:
        found: dict[AdapterKind, Callable[[], None]] = {"generic": self.use_generic}
        if self.settings.dual:
            found["personalised"] = self.use_personalised
        return found

    def mix(self) -> tuple[float, float]:
        """Weights of ΔW_g and ΔW_Ls at inference: (1, 1−γ) for `sum`, ((1+γ)/2, (1−γ)/2) for `mean`."""
        gamma = self.settings.gamma_mix
        return (1.0, 1 - gamma) if self.settings.combine == "sum" else ((1 + gamma) / 2, (1 - gamma) / 2)

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        self.use_generic()
        if count := plan.hints.probe:
            return probe_loss(self, split, plan, count)
        return curve_metrics(self, split, plan.limit if plan.limit is not None else self.settings.eval_limit)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        found = finish_site(self, folder, plan.limit)
        if self.settings.dual:
            write_personalised(self, folder / "personalised")
        return found

    def local_state(self) -> tuple[State, dict[str, Any]]:
        tensors = moments(self.shared_optimiser, "shared") | self.bank.state() | self.terms.state()
        tensors |= {f"local.{n}": b.detach().cpu().clone() for n, b in self.model.local_buffers().items()}
        if self.local_optimiser is not None:
            tensors |= moments(self.local_optimiser, "own")
            tensors |= {f"specialised.{n}": t for n, t in self.model.adapters.state(SPECIALISED).items()}
        return tensors, {"position": self.order.position}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.order.position = int(values["position"])
        tensors = self.terms.restore(tensors)
        self.bank.restore(tensors)
        restore_moments(self.shared_optimiser, tensors, "shared")
        with torch.no_grad():
            for name, buffer in self.model.local_buffers().items():
                buffer.copy_(tensors[f"local.{name}"])
        if self.local_optimiser is not None:
            restore_moments(self.local_optimiser, tensors, "own")
            own = {n[len("specialised.") :]: t for n, t in tensors.items() if n.startswith("specialised.")}
            self.model.adapters.load(SPECIALISED, own)
