# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of the encoder baseline on the meta device (learners/footprint.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from medflare.learners.training_step import TrainingStep, float_mask
from medflare.models.embedded import decoder_folder


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch."""
    from transformers import AutoConfig, AutoModel, BertConfig, BertModel

    if folder is None:
        shape = settings.encoder
        words = json.loads((decoder_folder("notes_decoder") / "config.json").read_text(encoding="utf-8"))
        config: Any = BertConfig(
            vocab_size=words["vocab_size"],
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.attention_heads,
            intermediate_size=4 * shape.width,
        )
        encoder: Any = BertModel(config, add_pooling_layer=False)
    else:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        encoder = AutoModel.from_config(config)
    encoder.get_input_embeddings().weight.requires_grad_(not settings.freeze_words)
    batch, tokens = settings.optimiser.batch, min(settings.max_tokens, config.max_position_embeddings)

    def forward() -> Any:
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        mask = float_mask(batch, tokens, torch.float32)
        return encoder(input_ids=ids, attention_mask=mask).last_hidden_state

    return TrainingStep((encoder,), forward, "fp32")
