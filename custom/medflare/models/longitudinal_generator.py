# SPDX-License-Identifier: Apache-2.0
"""The FedTAR model: a frozen image encoder and a frozen LLM with a client LoRA and factors made for each
patient.

Paper: FedTAR (paper 001), Eq. 3 and 4, TAR-7, TAR-14. The paper's decoder reads the
image by cross-attention; here any causal LLM reads it in its prefix,
`BOS · prefix · tokens of all pictures of the visit · suffix · report before · instruction · report · EOS`.
No pretrained bridge between the two exists, so the linear one learns, and travels, beside the adapters.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS
from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import Backbone, autocast
from medflare.models.fused_decoder import FusedDecoder
from medflare.models.padding import IGNORED
from medflare.models.patient_adapter import PROJECTION, PatientAdapter, PatientAdapterSettings
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator

FILE = "longitudinal_generator"
PATIENT, DECODER = "patient.", "decoder."
PATIENT_PROJECTION = PATIENT + PROJECTION
"""Before the names of W_proj and b_proj among the shared tensors."""
WORDING = {"prior": " Previous report:", "first": " First visit.", "later": " Follow-up visit."}
"""Words before the previous visit's report, in its place at a first visit, and where it is not shown or empty
at a later one; a backbone's template may have others."""


class LongitudinalSettings(Settings):
    """Settings from which a reader builds the model again.

    patient: the generated factors, None without personalisation; components: K of the mixture.
    prior_context: the prefix holds the report before (TAR-14), of at most `max_prior_tokens`.
    visit_context: the prefix says whether the visit is a patient's first (TAR-14).
    train_backbone: encoder and decoder learn and travel too (TAR-7).
    """

    model: ModelSettings
    patient: PatientAdapterSettings | None
    components: NonNegativeInt
    prior_context: bool = False
    max_prior_tokens: NonNegativeInt = 100
    visit_context: bool = False
    train_backbone: bool = False


@dataclass(slots=True)
class VisitBatch:
    """Inputs of the model for B visits, on any device.

    patches: (B, m, S, C) encoder's tokens of up to m pictures; pictures: (B, m) bool, true where there is
    one; priors: report before of each, None for a first visit; assigned: (B, K) rows q_p, None for nobody in
    particular.
    """

    patches: Tensor
    pictures: Tensor
    priors: Sequence[str | None]
    assigned: Tensor | None


class LongitudinalGenerator(ReportGenerator):
    """The report generator of visits: several pictures, the prior report and the patient's factors.

    Knows no data set and no federation.

    Attributes:
        anybody: (1, K), used as q_p of a patient of whom nothing is known; None: they have no factors.

    Raises:
        ConfigError: diagnosis prompts, which belong to FedMRG, or a backbone that cannot learn as asked.
    """

    def __init__(
        self, backbone: Backbone, settings: LongitudinalSettings, seed: int, encoder_file: Path | None = None
    ) -> None:
        _check(backbone, settings)
        super().__init__(backbone, settings.model, (GENERIC,), seed, encoder_file)
        self.parts = settings
        self.anybody: Tensor | None = None
        self.requires_grad_(False)
        self.projection.requires_grad_(True)
        self.adapters.use((GENERIC,), train=(GENERIC,))
        self.patient = (
            PatientAdapter(backbone.model, settings.patient, settings.components, seed)
            if settings.patient is not None
            else None
        )
        if settings.train_backbone:
            self.encoder.requires_grad_(True)
            for parameter in self._decoder().values():
                parameter.requires_grad_(True)

    # ---- what learns and is communicated -----------------------------------------------------------------

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return the tensors communicated beside the client LoRA.

        Projection and patient adapter; with `train_backbone` encoder and decoder too.
        """
        shared: dict[str, Tensor] = {f"projection.{n}": p for n, p in self.projection.named_parameters()}
        if self.patient is not None:
            shared |= {PATIENT + n: p for n, p in self.patient.shared_parameters().items()}
        if self.parts.train_backbone:
            shared |= self.encoder.shared_tensors() | self._decoder()
        return shared

    def _decoder(self) -> dict[str, nn.Parameter]:
        """Return the decoder's own weights by their names without any adapter's."""
        added = {id(p) for p in self.adapters.parameters(GENERIC)}
        weights = [(n, p) for n, p in self.adapters.peft.named_parameters() if id(p) not in added]
        plain = ((n.removeprefix("base_model.model.").replace(".base_layer.", "."), p) for n, p in weights)
        return {DECODER + n: p for n, p in plain}

    def remove_patient_adapter(self) -> None:
        """Remove the patient adapter, for a result without the projection of q_p."""
        if self.patient is not None:
            self.patient.remove()
        self.patient = None

    # ---- from pictures to words --------------------------------------------------------------------------

    def visit_prefix(self, batch: VisitBatch) -> tuple[Tensor, Tensor | None]:
        """Return everything before the report, and which of its positions are present.

        Returns:
            (B, P, hidden), shorter rows padded at the left; (B, P) bool, false at the padding, None where
            there is none.
        """
        rows, _, per_picture, _ = batch.patches.shape  # (B, m, S, C)
        with autocast(self.backbone.precision, str(self.device)):
            visual = self.projection(batch.patches.to(self.device).flatten(1, 2))  # (B, m·S, hidden)
        dtype = visual.dtype
        table = self._table()
        fixed = {n: ids.to(self.device).expand(rows, -1) for n, ids in self._segments.items()}
        pictured = batch.pictures.to(self.device).repeat_interleave(per_picture, 1)  # (B, m·S)
        parts = [(table(fixed["prefix"]), None), (visual, pictured), (table(fixed["suffix"]), None)]
        if self.parts.prior_context or self.parts.visit_context:
            ids, known = self._priors(batch.priors)  # (B, R), (B, R)
            parts.append((table(ids), known))
        parts.append((table(fixed["instruction"]), None))
        embedded = torch.cat([part.to(dtype) for part, _ in parts], 1)  # (B, P', hidden)
        present = torch.cat([_all(part) if kept is None else kept for part, kept in parts], 1)  # (B, P')
        return left_padded(embedded, present)

    def _priors(self, priors: Sequence[str | None]) -> tuple[Tensor, Tensor]:
        """Return token ids (B, R) of what is said of the visits before, and which positions are present."""
        rows = [self._prior(prior) for prior in priors]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        known = torch.arange(ids.shape[1]) < lengths[:, None]
        return ids.to(self.device), known.to(self.device)

    def _prior(self, prior: str | None) -> Tensor:
        if prior is None:
            return self._wording("first")
        if not (self.parts.prior_context and prior):
            return self._wording("later")
        report = self._ids(f" {prior}", bos=False)[0][: self.parts.max_prior_tokens]
        return torch.cat([self._wording("prior"), report])

    def _wording(self, name: str) -> Tensor:
        return self._ids(self.backbone.template.get(name, WORDING[name]), bos=False)[0]

    def positions(self, pictures: int, report: int) -> int:
        """Return the most positions that a visit of so many pictures and report tokens can take."""
        total = sum(ids.shape[1] for ids in self._segments.values()) + pictures * self.encoder.tokens + report
        words = {name: len(self._wording(name)) for name in WORDING}
        if self.parts.prior_context:
            return total + max(words["prior"] + self.parts.max_prior_tokens, words["first"], words["later"])
        return total + (max(words["first"], words["later"]) if self.parts.visit_context else 0)

    @contextlib.contextmanager
    def _patients_of(self, batch: VisitBatch) -> Iterator[None]:
        """Use the factors of the batch's patients inside."""
        assigned = batch.assigned
        if assigned is None and self.anybody is not None:
            assigned = self.anybody.expand(len(batch.priors), -1)
        if self.patient is None or assigned is None:
            yield
            return
        with self.patient.patients(assigned):
            yield

    def token_losses(self, batch: VisitBatch, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood (B, T) of each report token, 0 where `targets` is -100."""
        prefix, present = self.visit_prefix(batch)
        with self._patients_of(batch):
            targets = targets.to(self.device)
            kept = targets != IGNORED
            decoded = self.decode(prefix, reports.to(self.device), kept, present)
            losses = decoded.logits.new_zeros(targets.shape)
            return losses.masked_scatter(
                kept, F.cross_entropy(decoded.logits, targets[kept], reduction="none")
            )

    def _fused_decoder(self) -> FusedDecoder | None:
        """None where the decoder itself learns, or patients' factors act on its layers."""
        acts = self.patient is not None and self.patient.acts
        return None if acts or self.parts.train_backbone else super()._fused_decoder()

    def _write_fused(
        self, prefix: Tensor, present: Tensor, decoding: DecodingSettings
    ) -> list[list[int]] | None:
        """None also where patients' factors act on the decoder's layers."""
        acts = self.patient is not None and self.patient.acts
        return None if acts else super()._write_fused(prefix, present, decoding)

    @torch.no_grad()
    def draft(self, batch: VisitBatch, decoding: DecodingSettings) -> list[str]:
        """Generate a report for each visit of the batch."""
        prefix, present = self.visit_prefix(batch)
        with self._patients_of(batch):
            return self.write(prefix, decoding, present)

    @torch.no_grad()
    def generate(
        self, images: Tensor, decoding: DecodingSettings, codes: Tensor | None = None
    ) -> tuple[list[str], Tensor]:
        """Generate a report of each picture (B, 1, H, W), as of a first visit of an unknown patient.

        Returns:
            The reports, and zeros (B, 14) in place of diagnosis codes.
        """
        texts = self.draft_pictures(images, decoding)
        return texts, torch.zeros(len(images), len(CONDITIONS), dtype=torch.long)

    @torch.no_grad()
    def draft_pictures(
        self,
        images: Tensor,
        decoding: DecodingSettings,
        assigned: Tensor | None = None,
        priors: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Generate a report of each picture (B, 1, H, W).

        Args:
            assigned: (B, K) rows q_p of their patients; None for nobody in particular.
            priors: the reports of the visits before, None in place of one for a first visit; default all
                None.
        """
        tokens, _ = self.encode(images)
        pictures = torch.ones(len(images), 1, dtype=torch.bool)
        before = [None] * len(images) if priors is None else priors
        return self.draft(VisitBatch(tokens[:, None], pictures, before, assigned), decoding)


def _all(part: Tensor) -> Tensor:
    return torch.ones(part.shape[:2], dtype=torch.bool, device=part.device)


def left_padded(embedded: Tensor, present: Tensor) -> tuple[Tensor, Tensor | None]:
    """Remove absent positions and move the others, in order, to the right of each row.

    Args:
        embedded: (B, P', hidden).
        present: (B, P') bool.

    Returns:
        (B, P, hidden) and (B, P) bool, P the longest row; None for the latter where all are as long.
    """
    longest = int(present.sum(1).max())
    # a stable sort puts absent positions first and keeps the order of the others
    order = present.int().argsort(dim=1, stable=True)[:, -longest:]  # (B, P)
    moved = embedded.gather(1, order[..., None].expand(-1, -1, embedded.shape[2]))
    kept = present.gather(1, order)
    return moved, None if bool(kept.all()) else kept


def _check(backbone: Backbone, settings: LongitudinalSettings) -> None:
    if settings.model.prompts:
        raise ConfigError("model.prompts: diagnosis tokens belong to FedMRG; set it to false.")
    if settings.train_backbone and backbone.precision != "fp32":
        raise ConfigError(
            f"train_backbone: the decoder was loaded in {backbone.precision}, whose steps are too coarse to "
            "learn by. Set backbone.precision to fp32 in site.yaml."
        )


def parameter_counts(model: LongitudinalGenerator, held_back: Sequence[str] = ()) -> dict[str, int]:
    """Return the communicated parameters by part. held_back: starts of names that stay at the site."""
    parts = {
        "projection.": "projection",
        PATIENT_PROJECTION: "patient_projection",
        PATIENT: "hypernetwork",
        "encoder.": "encoder",
        DECODER: "decoder",
    }
    counts = {"adapter": sum(p.numel() for p in model.adapters.parameters(GENERIC))}
    for name, tensor in model.shared_tensors().items():
        if isinstance(tensor, nn.Parameter) and not name.startswith(tuple(held_back)):
            part = next(part for start, part in parts.items() if name.startswith(start))
            counts[part] = counts.get(part, 0) + tensor.numel()
    return counts


def export_settings(model: LongitudinalGenerator, decoding: DecodingSettings) -> dict[str, Any]:
    """Return what a reader needs besides tensors to rebuild the model, and the name of its file.

    `untravelled` holds a checksum of what must be the same at all sites and is not sent: the frozen encoder,
    and what an adapter makes from the seed.
    """
    settings: dict[str, Any] = {
        "file": FILE,
        "format": 1,
        "generator": model.parts.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"),
        "backbone": {"name": model.backbone.name, "fingerprint": model.backbone.fingerprint},
    }
    generated = model.adapters.not_communicated()
    if not model.parts.train_backbone:
        settings["encoder"] = {"sha256": encoder_checksum(model)}
        both = "+".join(filter(None, (settings["encoder"]["sha256"], generated.get("sha256"))))
        generated = generated | {"sha256": both}
    return settings | ({"untravelled": generated} if generated else {})


def encoder_checksum(model: LongitudinalGenerator) -> str:
    """Return the SHA-256 of the image encoder's weights; if frozen, it must be the same at all sites."""
    total = hashlib.sha256()
    for name, value in sorted(model.encoder.state_dict().items()):
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
