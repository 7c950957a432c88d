# SPDX-License-Identifier: Apache-2.0
"""CT2RepLong: a CT volume, the patient's volume before and its report become a report.

Source: Hamamci, Er and Menze, CT2Rep: Automated Radiology Report Generation for 3D Medical Imaging, MICCAI
2024, section 2.3. The decoder is R2Gen's; each of its layers first reads the current volume and then what the
former visit gives, with a memory that has read the same (BL-17 to BL-19).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from medflare.core.seeds import seeded
from medflare.models.backbone import autocast
from medflare.models.generators.settings import CT2RepLongModelSettings
from medflare.models.generators.transformer import ReportTransformer
from medflare.models.generators.volume_encoder import VolumeEncoder, fit_depth
from medflare.models.generators.writing import ReportVocabulary, VocabularyWriter, word_loss
from medflare.models.report_generator import DecodingSettings

KEPT = 0.8
"""Of a layer's own stream where the two streams are mixed, as in the released code."""


@dataclass(slots=True)
class VisitVolumes:
    """Inputs of B visits.

    Attributes:
        current, former: (B, slices, H, W) in [0, 1]; zeros where there is no former visit.
        words: (B, R) ids of the report before; known: (B, R) bool, false where padded.
        later: (B,) bool, false for a patient's first visit.
    """

    current: Tensor
    former: Tensor
    words: Tensor
    known: Tensor
    later: Tensor

    def to(self, device: torch.device) -> VisitVolumes:
        """Return the same on a device."""
        parts = (self.current, self.former, self.words, self.known, self.later)
        return VisitVolumes(*(part.to(device) for part in parts))


class CT2RepLong(VocabularyWriter):
    """Volume encoder, encoders of volumes and of the former report, and a decoder of two streams."""

    def __init__(
        self,
        settings: CT2RepLongModelSettings,
        vocabulary: ReportVocabulary,
        precision: str,
        seed: int,
        encoder_file: Path | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, precision)
        width, heads = settings.width, settings.attention_heads
        with seeded(seed):
            self.encoder = VolumeEncoder(settings.encoder)
            self.transformer = ReportTransformer(settings, self.encoder.width, vocabulary.size)
            layer = nn.TransformerEncoderLayer(
                width, heads, settings.feed_forward, settings.dropout, batch_first=True, norm_first=True
            )
            self.former_words = nn.TransformerEncoder(
                layer, settings.layers, nn.LayerNorm(width), enable_nested_tensor=False
            )
            self.fuse = nn.MultiheadAttention(width, heads, settings.dropout, batch_first=True)
            self.memory_in = nn.Linear(settings.slots * width, width)
            self.memory_out = nn.Linear(width, settings.slots * width)
            self.first_visit = nn.Parameter(0.02 * torch.randn(1, 1, width))

    # ---- from visits to what the decoder looks at --------------------------------------------------------

    def encode_visits(self, visits: VisitVolumes) -> Tensor:
        """Return what the decoder looks at, (B, S + 1 + S + R, width + 1), as one tensor for beam search.

        The tokens of the current volume, one that stands for a first visit, those of the former volume and
        of its report; the last value of each is 1 where the token is absent.
        """
        visits = visits.to(self.device)
        current = self.transformer.encode(self.encoder(visits.current))  # (B, S, width)
        image = self.transformer.encode(self.encoder(visits.former))  # (B, S, width)
        padded = ~visits.known
        words = self.transformer.words(visits.words)  # (B, R, width)
        words = self.former_words(words, src_key_padding_mask=padded)
        words = self.fuse(words, current, current, need_weights=False)[0]
        words = self.fuse(words, image, image, need_weights=False)[0]
        image = self.fuse(image, words, words, key_padding_mask=padded, need_weights=False)[0]
        first = self.first_visit.to(current.dtype).expand(len(current), -1, -1)
        later = visits.later[:, None]  # (B, 1)
        here = torch.zeros_like(current[..., 0]).bool()  # (B, S)
        gone = torch.cat([here, later, ~later | here, ~later | padded], 1)
        return torch.cat([torch.cat([current, first, image, words], 1), gone[..., None].to(current.dtype)], 2)

    def encode(self, images: Tensor) -> Tensor:
        """Return what the decoder looks at of single slices (B, 1, H, W), as of a first visit."""
        size = self.encoder.settings
        present = torch.ones(len(images), 1, dtype=torch.bool)
        current = fit_depth(images, present, size.slices)
        begin = torch.full((len(images), 1), self.vocabulary.begin)
        nothing = torch.zeros(len(images), dtype=torch.bool)
        return self.encode_visits(
            VisitVolumes(current, torch.zeros_like(current), begin, torch.ones_like(begin).bool(), nothing)
        )

    # ---- words -------------------------------------------------------------------------------------------

    def hidden(self, image: Tensor, ids: Tensor) -> Tensor:
        """Return the decoder's states, (B, T, width), of words (B, T) given `encode_visits`."""
        seen, gone = image[..., :-1], image[..., -1] > 0.5
        count = self.encoder.tokens
        current, former, gone = seen[:, :count], seen[:, count:], gone[:, count:]
        parts = self.transformer
        assert parts.memory is not None
        words = parts.words(ids)  # (B, T, width)
        memory = self.memory_in(parts.memory(words))  # (B, T, width)
        of_current = self.memory_out(self.fuse(memory, current, current, need_weights=False)[0])
        read = self.fuse(memory, former, former, key_padding_mask=gone, need_weights=False)[0]
        of_former = self.memory_out(read)  # (B, T, slots * width)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        one = other = words
        for layer in parts.layers:
            one = layer(one, current, mask, of_current)
            other = (1 - KEPT) * one + KEPT * other
            other = layer(other, former, mask, of_former, gone)
        normal: Tensor = parts.norm(KEPT * one + (1 - KEPT) * other)
        return normal

    def logits(self, image: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.transformer.out(self.hidden(image, ids))
        return logits

    def visit_loss(self, visits: VisitVolumes, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per token of reports (B, T); arguments as `report_loss`."""
        with autocast(self.precision, str(self.device)):
            image = self.encode_visits(visits)
            reports, targets = reports.to(self.device), targets.to(self.device)
            return word_loss(self.logits(image, self.after_begin(reports)), targets)

    @torch.no_grad()
    def draft(self, visits: VisitVolumes, decoding: DecodingSettings) -> list[str]:
        """Generate a report of each visit."""
        with autocast(self.precision, str(self.device)):
            image = self.encode_visits(visits)
        return self.write(image, decoding)

    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per token, of single slices as of a first visit."""
        with autocast(self.precision, str(self.device)):
            return word_loss(self.logits(self.encode(images), self.after_begin(reports)), targets)
