# SPDX-License-Identifier: Apache-2.0
"""One training step of each method as networks and a forward pass, for torch's meta device (footprint.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS
from medflare.models.adapters.attach import attach
from medflare.models.adapters.lora import ANCHOR, GENERIC, SPECIALISED
from medflare.models.embedded import decoder_folder
from medflare.models.encoders import VisualEncoder
from medflare.models.patient_adapter import PatientAdapter

TEMPLATE_TOKENS = 64
"""Instruction and frame of a prompt, rounded up."""


@dataclass(frozen=True, slots=True)
class Step:
    """Networks on the meta device and one forward pass of a batch; `precision` is of what does not learn."""

    networks: tuple[nn.Module, ...]
    forward: Callable[[], Any]
    precision: str


def _decoder(folder: Path | None, embedded: Any, precision: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder or decoder_folder(embedded), local_files_only=True)
    dtype = torch.float32 if precision in ("fp32", "int8") else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.requires_grad_(False)
    return model


def _mask(batch: int, tokens: int, dtype: torch.dtype) -> Tensor:
    """A mask of four dimensions is used as it is; another one would be asked for its values."""
    return torch.zeros(batch, 1, tokens, tokens, dtype=dtype)


def _fedmrg(settings: Any, folder: Path | None, precision: str) -> Step:
    decoder = _decoder(folder, "decoder", precision)
    names = (GENERIC, ANCHOR, SPECIALISED) if settings.dual else (GENERIC,)
    adapters = attach(decoder, settings.model.adapter, names, 0)
    learning = tuple(name for name in names if name != ANCHOR)
    adapters.use(names, learning)
    encoder = VisualEncoder(settings.model.encoder.model_copy(update={"weights": "none"}))
    hidden = int(decoder.config.hidden_size)
    around = nn.ModuleList([nn.Linear(encoder.width, hidden), nn.Linear(encoder.width, 4 * len(CONDITIONS))])
    for network in (encoder, around):
        network.requires_grad_(settings.encoder_lr_scale > 0 or network is around)
    size, batch, views = settings.model.encoder.image_size, settings.batch, 2 if settings.contrasts else 1
    tokens = encoder.tokens + TEMPLATE_TOKENS + len(CONDITIONS) + settings.max_report_tokens

    def forward() -> Any:
        grid, pooled = encoder(torch.zeros(views * batch, 1, size, size))
        seen, codes = around[0](grid[:batch]), around[1](pooled)
        rest = torch.zeros(batch, tokens - seen.shape[1], hidden, requires_grad=True)
        inputs = torch.cat([seen, rest], 1).to(decoder.dtype)
        out = decoder(
            inputs_embeds=inputs,
            attention_mask=_mask(batch, tokens, decoder.dtype),
            use_cache=False,
            logits_to_keep=settings.max_report_tokens,
        )
        return out.logits.float().log_softmax(-1).sum() + codes.sum()

    return Step((decoder, encoder, around), forward, precision)


def _fed_medlora(settings: Any, folder: Path | None, precision: str) -> Step:
    decoder = _decoder(folder, "notes_decoder", precision)
    attach(decoder, settings.adapter, (GENERIC,), 0).use((GENERIC,), (GENERIC,))
    if settings.optimiser.gradient_checkpointing:
        decoder.gradient_checkpointing_enable({"use_reentrant": False})
        decoder.enable_input_require_grads()
        decoder.train()
    positions = int(getattr(decoder.config, "max_position_embeddings", None) or settings.max_tokens)
    batch, tokens = settings.optimiser.batch, min(settings.max_tokens, positions)

    def forward() -> Any:
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        mask = _mask(batch, tokens, decoder.dtype)
        out = decoder(input_ids=ids, attention_mask=mask, use_cache=False)
        return out.logits.float().log_softmax(-1).sum()

    return Step((decoder,), forward, precision)


def _fedtar(settings: Any, folder: Path | None, precision: str) -> Step:
    """Of visits with one picture; a frozen encoder has no part in a step."""
    whole = settings.train_backbone
    decoder = _decoder(folder, "decoder", "fp32" if whole else precision)
    attach(decoder, settings.model.adapter, (GENERIC,), 0).use((GENERIC,), (GENERIC,))
    encoder = VisualEncoder(settings.model.encoder.model_copy(update={"weights": "none"}))
    encoder.requires_grad_(whole)
    if whole:
        decoder.requires_grad_(True)
    hidden, components = int(decoder.config.hidden_size), settings.mixture.components
    bridge = nn.Linear(encoder.width, hidden)
    patient = PatientAdapter(decoder, settings.patient, components, 0) if settings.personal else None
    size, batch = settings.model.encoder.image_size, settings.batch
    prior = settings.max_prior_tokens if settings.prior_context else 0
    rest = TEMPLATE_TOKENS + prior + settings.max_report_tokens

    def forward() -> Any:
        grid = torch.zeros(batch, encoder.tokens, encoder.width)
        if whole:
            grid = encoder(torch.zeros(batch, 1, size, size))[0]
        inputs = torch.cat([bridge(grid), torch.zeros(batch, rest, hidden, requires_grad=True)], 1)
        with patient.patients(torch.zeros(batch, components)) if patient else nullcontext():
            out = decoder(
                inputs_embeds=inputs.to(decoder.dtype),
                attention_mask=_mask(batch, inputs.shape[1], decoder.dtype),
                use_cache=False,
                logits_to_keep=settings.max_report_tokens,
            )
        return out.logits.float().log_softmax(-1).sum()

    networks = (decoder, encoder, bridge) + ((patient,) if patient else ())
    return Step(networks, forward, "fp32" if whole else precision)


def _fedvit_gpt2(settings: Any, folder: Path | None, precision: str) -> Step:
    from transformers import AutoConfig, GPT2Config, VisionEncoderDecoderConfig, ViTConfig
    from transformers import VisionEncoderDecoderModel as Model

    if folder is None:
        look, write = settings.model.encoder, settings.model.decoder
        words = json.loads((decoder_folder() / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        encoder: Any = ViTConfig(
            hidden_size=look.width,
            num_hidden_layers=look.layers,
            num_attention_heads=look.attention_heads,
            intermediate_size=4 * look.width,
            image_size=look.image_size,
            patch_size=look.patch,
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
    network = Model(config=VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    batch, tokens = settings.optimiser.batch, min(settings.max_report_tokens, decoder.n_positions)

    def forward() -> Any:
        images = torch.zeros(batch, encoder.num_channels, encoder.image_size, encoder.image_size)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        mask = _mask(batch, tokens, torch.float32)
        out = network(
            pixel_values=images, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=False
        )
        return out.logits.float().log_softmax(-1).sum()

    return Step((network,), forward, "fp32")


def _token_classification(settings: Any, folder: Path | None, precision: str) -> Step:
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
        return encoder(input_ids=ids, attention_mask=_mask(batch, tokens, torch.float32)).last_hidden_state

    return Step((encoder,), forward, "fp32")


STEPS: dict[str, Callable[[Any, Path | None, str], Step]] = {
    "fedmrg": _fedmrg,
    "fed_medlora": _fed_medlora,
    "fedtar": _fedtar,
    "fedvit_gpt2": _fedvit_gpt2,
    "token_classification": _token_classification,
}
"""Method -> one training step of it on the meta device."""
