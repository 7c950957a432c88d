# SPDX-License-Identifier: Apache-2.0
"""DCL: image features that have read a dynamic graph, and one text network that compares and writes reports.

Source: Li et al., Dynamic Graph Enhanced Contrastive Learning for Chest X-ray Report Generation, CVPR 2023.
The text network is BLIP's of transformers: without the mark of a decoder it sees a whole report, alone or
beside an image, with it the words before (BL-13).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.seeds import seeded
from medflare.models.backbone import LOADING, autocast
from medflare.models.encoders import VisualEncoder
from medflare.models.generators.knowledge_graph import GraphReader
from medflare.models.generators.report_queue import ReportQueue
from medflare.models.generators.settings import DCLModelSettings
from medflare.models.generators.writing import ReportVocabulary, VocabularyWriter, word_loss
from medflare.models.padding import IGNORED

TEXT, MATCH = 0, 1
"""Tokens after those of the vocabulary that begin a report to compare, and one to match with an image."""


class DCL(VocabularyWriter):
    """Image encoder, dynamic graph and text network.

    Attributes:
        queue: reports that this site has trained on, for retrieval; None at an unseen site, where the graph
            has general concepts alone.
        temperature: () of the contrast; it learns.
    """

    def __init__(
        self,
        settings: DCLModelSettings,
        vocabulary: ReportVocabulary,
        precision: str,
        seed: int,
        encoder_file: Path | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, precision)
        width = settings.width
        with seeded(seed):
            self.encoder = VisualEncoder(settings.encoder, encoder_file)
            same = self.encoder.width == width
            self.bring = nn.Identity() if same else nn.Linear(self.encoder.width, width)
            self.text: Any = text_network(settings, vocabulary.size)
            self.graph = GraphReader(
                width, settings.graph_heads, settings.graph_feed_forward, dropout=settings.dropout
            )
            self.image_projection = nn.Linear(width, settings.contrast_width)
            self.text_projection = nn.Linear(width, settings.contrast_width)
            self.match = nn.Linear(width, 2)
        self.temperature = nn.Parameter(torch.tensor(0.07))
        self.queue: ReportQueue | None = None

    # ---- images ------------------------------------------------------------------------------------------

    def see(self, images: Tensor) -> Tensor:
        """Return image features before the graph: (B, 1, H, W) -> (B, 1 + S, width), the mean first."""
        tokens, pooled = self.encoder(images)  # (B, S, C), (B, C)
        brought: Tensor = self.bring(torch.cat([pooled[:, None], tokens], 1))
        return brought

    def image_features(self, image: Tensor) -> Tensor:
        """Return unit features of encoded images: (B, S, width) -> (B, contrast_width)."""
        return F.normalize(self.image_projection(image[:, 0]).float(), dim=-1)

    def retrieve(self, seen: Tensor, patients: Tensor | None = None) -> Tensor:
        """Return the codes of the reports most like each image, (B, k, 14); all blank without a queue."""
        if self.queue is None:
            blank = (len(seen), 1, len(CONDITIONS))
            return torch.full(blank, int(Code.BLANK), device=seen.device)
        return self.queue.find(self.image_features(seen), self.settings.retrieved, patients)

    def encode(self, images: Tensor) -> Tensor:
        seen = self.see(images)
        read: Tensor = self.graph(seen, self.retrieve(seen))
        return read

    # ---- texts -------------------------------------------------------------------------------------------

    def read(self, reports: Tensor, targets: Tensor, mark: int, image: Tensor | None = None) -> Tensor:
        """Return the state of a report's first token, (B, width), alone or beside an image.

        Args:
            reports, targets: (B, T) as of `report_loss`. mark: TEXT or MATCH.
            image: (B, S, width), or None.
        """
        first = torch.full_like(reports[:, :1], self.vocabulary.size + mark)
        kept = torch.cat([torch.ones_like(first), (targets != IGNORED).long()], 1)  # (B, T + 1)
        out = self.text.bert(
            input_ids=torch.cat([first, reports], 1),
            attention_mask=kept,
            encoder_hidden_states=image,
            is_decoder=False,
        )
        first_states: Tensor = out.last_hidden_state[:, 0]
        return first_states

    def report_features(self, reports: Tensor, targets: Tensor) -> Tensor:
        """Return unit features of reports, (B, contrast_width)."""
        return F.normalize(self.text_projection(self.read(reports, targets, TEXT)).float(), dim=-1)

    def logits(self, image: Tensor, ids: Tensor) -> Tensor:
        out = self.text(input_ids=ids, encoder_hidden_states=image, is_decoder=True, use_cache=False)
        logits: Tensor = out.logits[..., : self.vocabulary.size]
        return logits

    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.precision, str(self.device)):
            return word_loss(self.logits(self.encode(images), self.after_begin(reports)), targets)


def text_network(settings: DCLModelSettings, vocabulary: int) -> nn.Module:
    """Return BLIP's text network with new weights, and two tokens after the vocabulary."""
    with LOADING:
        from transformers import BlipTextConfig
        from transformers.models.blip.modeling_blip_text import BlipTextLMHeadModel

        config = BlipTextConfig(
            vocab_size=vocabulary + 2,
            hidden_size=settings.width,
            encoder_hidden_size=settings.width,
            intermediate_size=settings.feed_forward,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.attention_heads,
            max_position_embeddings=settings.positions + 1,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            bos_token_id=None,
            eos_token_id=None,
            sep_token_id=None,
            pad_token_id=None,
        )
        return BlipTextLMHeadModel(config)
