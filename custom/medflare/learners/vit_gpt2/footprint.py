# SPDX-License-Identifier: Apache-2.0
"""Memory estimate: one training step of FedViT-GPT2 on the meta device (learners/footprint.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from medflare.learners.training_step import TrainingStep, float_mask, log_likelihood
from medflare.models.embedded import decoder_folder
from medflare.models.vit_gpt2_folder import network_of
from medflare.models.vit_stem import KEY


def training_step(settings: Any, folder: Path | None, precision: str) -> TrainingStep:
    """Return the networks and a forward pass of one batch."""
    from transformers import AutoConfig, GPT2Config, VisionEncoderDecoderConfig, ViTConfig

    if folder is None:
        look, write = settings.model.encoder, settings.model.decoder
        stem: dict[str, Any] = {KEY: list(look.stem_channels)} if look.stem_channels else {}
        words = json.loads((decoder_folder() / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        encoder: Any = ViTConfig(
            hidden_size=look.width,
            num_hidden_layers=look.layers,
            num_attention_heads=look.attention_heads,
            intermediate_size=4 * look.width,
            image_size=look.image_size,
            patch_size=look.patch,
            **stem,
        )
        decoder: Any = GPT2Config(
            vocab_size=words,
            n_embd=write.width,
            n_layer=write.layers,
            n_head=write.attention_heads,
            n_positions=write.positions,
        )
    else:
        encoder = AutoConfig.from_pretrained(folder / "encoder", local_files_only=True)
        decoder = AutoConfig.from_pretrained(folder / "decoder", local_files_only=True)
    decoder.is_decoder = decoder.add_cross_attention = True
    network = network_of(VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, decoder.n_positions)

    def forward() -> Any:
        images = torch.zeros(batch, encoder.num_channels, encoder.image_size, encoder.image_size)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        mask = float_mask(batch, tokens, torch.float32)
        out = network(
            pixel_values=images, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=False
        )
        return log_likelihood(out.logits)

    return TrainingStep((network,), forward, "fp32")
