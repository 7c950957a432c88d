# SPDX-License-Identifier: Apache-2.0
"""FedMRG's two optimiser steps on a mini-batch: two adapters that teach each other (DMB, Algorithm 1).

The generic adapter A_g is communicated. The specialised adapter A_s stays, and works on top of a frozen copy
of the received A_g, the anchor. Step 1 trains A_g with A_s as teacher, step 2 trains A_s with A_g as teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.learners.base import require_finite
from medflare.learners.fedmrg import losses
from medflare.learners.fedmrg.memory_bank import MemoryBank
from medflare.learners.fedmrg.settings import FedMRGSettings
from medflare.learners.optim import adamw
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.padding import IGNORED
from medflare.models.report_generator import Decoded, ReportGenerator, VisualFeatures


@dataclass(slots=True)
class Batch:
    """One mini-batch of N images on the device.

    Attributes:
        views: (N or 2N, 1, s, s), all first views before all second ones.
        targets: (N, T) token ids, IGNORED at the padding.
        reports: (N, T) token ids.
        codes: (N, 14) of Code.
    """

    views: Tensor
    targets: Tensor
    reports: Tensor
    codes: Tensor

    @property
    def kept(self) -> Tensor:
        """(N, T) bool, false at the padding."""
        return self.targets != IGNORED

    @property
    def words(self) -> Tensor:
        """The K tokens of all reports, row by row, (K,)."""
        return self.targets[self.kept]


@dataclass(frozen=True, slots=True)
class Active:
    """Adapters that compute together, and what each is multiplied by; 1 where `scales` says nothing."""

    names: tuple[str, ...]
    scales: dict[str, float] | None = None


@dataclass(slots=True)
class ImageLoss:
    """λ_hcl L_hcl + λ_cls L_CE of the encoded views, and its terms as numbers."""

    loss: Tensor
    terms: dict[str, float]


@dataclass(slots=True)
class AdapterLoss:
    """L_LM + λ_kd L_kd of one adapter; the terms as numbers, and the outputs that may teach the other."""

    loss: Tensor
    language: float
    distillation: float | None
    outputs: Decoded

    def terms(self, language: str, distillation: str) -> dict[str, float]:
        """Return the terms under the names of the update's metrics."""
        terms = {language: self.language}
        return terms if self.distillation is None else terms | {distillation: self.distillation}


class DualAdapterTraining:
    """Both steps on a mini-batch, with the optimisers that live for all rounds.

    Attributes:
        shared_optimiser: of everything that is communicated, encoder included.
        local_optimiser: of A_s alone; None without the specialised adapter.
    """

    def __init__(self, site: str, model: ReportGenerator, settings: FedMRGSettings, bank: MemoryBank) -> None:
        self.site, self.model, self.settings, self.bank = site, model, settings, bank
        encoder = list(model.encoder.parameters()) if settings.encoder_lr_scale > 0 else []
        if not encoder:
            model.encoder.requires_grad_(False)
        self.shared_optimiser = adamw(
            [
                (model.body() + model.adapters.parameters(GENERIC), settings.lr),
                (encoder, settings.lr * settings.encoder_lr_scale),
            ],
            settings.weight_decay,
        )
        self.local_optimiser: torch.optim.AdamW | None = None
        if settings.dual:
            groups = [(model.adapters.parameters(SPECIALISED), settings.lr * settings.specialised_lr_scale)]
            self.local_optimiser = adamw(groups, settings.weight_decay)
        half = 1.0 if settings.combine == "sum" else 0.5
        self.generic = Active((GENERIC,))
        self.specialised = Active((ANCHOR, SPECIALISED), {ANCHOR: half, SPECIALISED: half})

    def optimisers(self) -> list[torch.optim.Optimizer]:
        """Return those that exist."""
        return [one for one in (self.shared_optimiser, self.local_optimiser) if one is not None]

    def train_batch(self, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take both steps on one mini-batch and return the loss terms as numbers.

        Args:
            generator: draws which images are prompted by prediction (MRG-16).
        """
        encoded = self.model.encode(batch.views)  # (N or 2N, S, C), (N or 2N, C)
        features, image = self.image_loss(encoded, batch.codes)
        prompts = self.prompt_codes(features, batch.codes, generator)
        shared = self._shared_pass(batch, features, prompts) if self.settings.share_forward else None
        generic = self._generic_step(batch, features, prompts, image, shared)
        terms = image.terms | generic.terms("loss", "loss_kd_generic")
        features = features.detach()
        if self.local_optimiser is not None:
            specialised = self._specialised_step(batch, encoded, features, prompts, generic.outputs, shared)
            terms |= specialised.terms("loss_specialised", "loss_kd_specialised")
        # The queue keeps what step 1 saw: step 2 may have encoded the images again with other weights.
        self.bank.remember(F.normalize(features.pooled, dim=1))
        return terms

    def _shared_pass(self, batch: Batch, features: VisualFeatures, prompts: Tensor) -> Decoded:
        """Return A_s's outputs with its gradient: step 1's teacher and step 2's student in one (MRG-21)."""
        return self._student(batch, features.detach(), prompts, self.specialised, SPECIALISED)

    def _generic_step(
        self,
        batch: Batch,
        features: VisualFeatures,
        prompts: Tensor,
        image: ImageLoss,
        shared: Decoded | None,
    ) -> AdapterLoss:
        """Step 1: A_s teaches A_g (l2g), and everything shared learns. The outputs returned are detached."""
        s, teacher = self.settings, None
        if shared is not None:
            teacher = shared.detach()
        elif s.dual and s.distil_to_generic:
            teacher = self._teach(self.specialised, batch, features, prompts)
        student = self._student(batch, features, prompts, self.generic, GENERIC)
        generic = self._adapter_loss(student, teacher, batch.words)
        loss = image.loss + generic.loss
        # Only communicated adapters have a penalty (AdaLoRA's orthogonality); step 2 trains none of them.
        self._step(loss + self.model.adapters.penalty(), self.shared_optimiser)
        generic.outputs = student.detach()
        return generic

    def _specialised_step(
        self,
        batch: Batch,
        encoded: tuple[Tensor, Tensor],
        features: VisualFeatures,
        prompts: Tensor,
        first: Decoded,
        shared: Decoded | None,
    ) -> AdapterLoss:
        """Step 2: A_g teaches A_s (g2l).

        With `encoder_update: both` the image losses count a second time and the encoder moves twice on a
        batch; with `encoder_once` projection and diagnosis head move again, on what the encoder returned in
        step 1; with `first` nothing but A_s moves, on the features of step 1 (MRG-12).

        Args:
            features: of step 1, detached.
            first: A_g's outputs of step 1, detached.
            shared: A_s's outputs of step 1 with their gradient; None where step 2 computes them anew.
        """
        assert self.local_optimiser is not None
        image_loss = torch.zeros((), device=self.model.device)
        optimisers: list[torch.optim.Optimizer] = [self.local_optimiser]
        if self.settings.encoder_update != "first":
            if self.settings.encoder_update == "encoder_once":
                encoded = (encoded[0].detach(), encoded[1].detach())
            elif self.settings.encoder_lr_scale > 0:
                encoded = self.model.encode(batch.views)  # step 1 has moved the encoder
            features, image = self.image_loss(encoded, batch.codes)
            image_loss = image.loss
            optimisers.append(self.shared_optimiser)
        teacher = None
        if self.settings.distil_to_specialised:
            # FedDAT's code teaches with what step 1 computed; the equations read the weights after step 1.
            reuse = self.settings.reuse_teacher
            teacher = first if reuse else self._teach(self.generic, batch, features, prompts)
        if shared is None:
            student = self._student(batch, features, prompts, self.specialised, SPECIALISED)
        else:
            student = shared
            # step 1 has let A_g alone learn: without this no gradient would reach A_s
            names, scales = self.specialised.names, self.specialised.scales
            self.model.adapters.use(names, train=(SPECIALISED,), scales=scales)
        specialised = self._adapter_loss(student, teacher, batch.words)
        self._step(image_loss + specialised.loss, *optimisers)
        return specialised

    def _student(
        self, batch: Batch, features: VisualFeatures, prompts: Tensor, active: Active, train: str
    ) -> Decoded:
        """Return the outputs of the adapters in `active`, of which `train` learns, for the batch's reports.

        Args:
            prompts: (N, 14) codes that prompt the decoder.
        """
        self.model.adapters.use(active.names, train=(train,), scales=active.scales)
        prefix = self.model.prefix(features, prompts)  # (N, P, hidden)
        if train == SPECIALISED and self.settings.encoder_update == "first":
            prefix = prefix.detach()  # A_s alone moves
        return self.model.decode(prefix, batch.reports, batch.kept)  # logits (K, vocabulary), hidden (K, h)

    def _adapter_loss(self, student: Decoded, teacher: Decoded | None, words: Tensor) -> AdapterLoss:
        """Return L_LM + λ_kd L_kd.

        Args:
            teacher: outputs of the other adapter for the same reports; None for no distillation.
            words: (K,).
        """
        loss = losses.language(student, words)
        language, distillation = loss.item(), None
        if teacher is not None:
            s = self.settings
            kd = losses.distillation(student, teacher, s.kd_temperature, s.kl_direction, s.kd_cosine)
            loss, distillation = loss + s.lambda_kd * kd, kd.item()
        return AdapterLoss(loss, language, distillation, student)

    @torch.no_grad()
    def _teach(self, active: Active, batch: Batch, features: VisualFeatures, prompts: Tensor) -> Decoded:
        """Return the outputs of the adapters in `active`, none of which learns, for the batch's reports."""
        self.model.adapters.use(active.names, scales=active.scales)
        prefix = self.model.prefix(features.detach(), prompts)
        return self.model.decode(prefix, batch.reports, batch.kept)

    def image_loss(self, encoded: tuple[Tensor, Tensor], codes: Tensor) -> tuple[VisualFeatures, ImageLoss]:
        """Return the features of the first views, and the losses of the image side.

        Args:
            encoded: patch tokens (N or 2N, S, C) and pooled features (N or 2N, C) of all views.
            codes: (N, 14).
        """
        s, half, terms = self.settings, len(codes), dict[str, float]()
        both = self.model.project(*encoded)  # visual (2N, S, hidden), pooled (2N, C), logits (2N, 14, 4)
        loss = both.logits.sum() * 0.0
        if s.contrasts:
            unit = F.normalize(both.pooled, dim=1)
            bank = self.bank.rows().to(unit.device)
            hcl = losses.contrastive(unit[:half], unit[half:], bank, s.tau, s.positive_in_denominator)
            loss, terms["loss_hcl"] = loss + s.lambda_hcl * hcl, hcl.item()
        first = VisualFeatures(both.visual[:half], both.pooled[:half], both.logits[:half])
        if s.classification:
            cls = losses.diagnosis(first.logits, codes)
            loss, terms["loss_cls"] = loss + s.lambda_cls * cls, cls.item()
        return first, ImageLoss(loss, terms)

    def prompt_codes(self, features: VisualFeatures, codes: Tensor, generator: torch.Generator) -> Tensor:
        """Return gold codes, and predicted ones for a share of images where the job asks for it (MRG-16)."""
        if self.settings.prompt_dropout == 0 or not self.settings.model.prompts:
            return codes
        swap = torch.rand(len(codes), generator=generator).to(codes.device) < self.settings.prompt_dropout
        return torch.where(swap[:, None], features.logits.argmax(-1), codes)

    def _step(self, loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        """Take a step of each optimiser on one loss.

        Gradients of both optimisers are set to None before: a parameter that this loss does not reach has no
        gradient then, so that AdamW's weight decay leaves it alone too (MRG-12).

        Raises:
            UpdateError: the loss is not finite. Nothing has moved: one NaN in A_s, which never leaves, would
                spoil the site for all rounds to come.
        """
        require_finite(loss, setting="settings.lr", records="images", site=self.site)
        for optimiser in self.optimisers():
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                reached = [one for one in group["params"] if one.grad is not None]
                if reached:  # torch refuses a list without a gradient
                    torch.nn.utils.clip_grad_value_(reached, self.settings.clip_value)
            optimiser.step()
        self.model.adapters.after_step()
