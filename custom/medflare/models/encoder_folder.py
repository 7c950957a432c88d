# SPDX-License-Identifier: Apache-2.0
"""The encoder a tagger starts from: a site's own folder (BERT, RoBERTa, DeBERTa, ...), or a small new one."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.model_folders import check_folder
from medflare.core.seeds import seeded
from medflare.core.site_description import OWN
from medflare.models.backbone import (
    LOADING,
    fingerprint,
    load_tokenizer,
    quiet_transformers,
    resolve_precision,
)
from medflare.models.embedded import decoder_folder

NEW = f"{OWN}new-encoder"
TRAINED_PRECISIONS = ("auto", "fp32", "bf16")


class TextEncoderSettings(Settings):
    """The encoder where a site names no folder: random weights, the embedded vocabulary of notes.

    Attributes:
        layers, attention_heads: how many.
        width: of a hidden state.
    """

    layers: int = Field(default=3, ge=1)
    width: int = Field(default=128, ge=16)
    attention_heads: int = Field(default=4, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """An encoder with its tokenizer.

    Attributes:
        precision: fp32 or bf16, of the arithmetic; weights are fp32, as all of them learn.
        begin, end, padding: numbers of the tokens before, after and beyond a text.
        longest: most tokens of an input, marks included.
    """

    model: Any
    tokenizer: Any
    name: str
    fingerprint: str
    precision: str
    device: str
    begin: int
    end: int
    padding: int
    longest: int


def load_encoder(
    folder: Path | None, precision: str, device: str, shape: TextEncoderSettings, seed: int
) -> TextEncoder:
    """Open an encoder's folder, or make a new one from `shape` and `seed`.

    Raises:
        ConfigError: the folder is missing, has no safetensors or holds no encoder, or the precision cannot
            learn.
    """
    chosen = trained_precision(precision, device, "token_classification")
    source = decoder_folder("notes_decoder") if folder is None else folder
    if folder is None:
        tokenizer = load_tokenizer(source)
        model = _new(shape, tokenizer, seed)
    else:
        model, tokenizer = open_encoder(folder, "backbone.folder")
    model.to(device)
    begin = first_token(tokenizer.cls_token_id, tokenizer.bos_token_id)
    end = first_token(tokenizer.sep_token_id, tokenizer.eos_token_id)
    return TextEncoder(
        model=model,
        tokenizer=tokenizer,
        name=NEW if folder is None else folder.name,
        fingerprint=_fingerprint_of_new(model, source) if folder is None else fingerprint(folder),
        precision=chosen,
        device=device,
        begin=begin,
        end=end,
        padding=first_token(tokenizer.pad_token_id, end),
        longest=positions(model),
    )


def trained_precision(precision: str, device: str, method: str) -> str:
    """Return the precision of the arithmetic of a method that trains all weights, which are fp32.

    Raises:
        ConfigError: a precision whose weights cannot learn.
    """
    if precision not in TRAINED_PRECISIONS:
        raise ConfigError(
            f"backbone.precision is '{precision}', but {method} trains all weights; expected one of "
            f"{', '.join(TRAINED_PRECISIONS)}."
        )
    return resolve_precision(precision, device)


def open_encoder(folder: Path, setting: str) -> tuple[Any, Any]:
    """Return an encoder in fp32, without a pooling layer, which nothing here uses, and its fast tokenizer.

    Raises:
        ConfigError: under the name of the setting: the folder is missing, has no safetensors or holds no
            encoder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    check_folder(folder, setting)
    model_type = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    if model_type not in ENCODERS:
        raise ConfigError(
            f"{setting}: '{folder}' holds a {model_type}, which does not see both sides of a word. "
            "Expected an encoder such as BERT, RoBERTa, DeBERTa or DistilBERT; or leave the folder out."
        )
    tokenizer = load_tokenizer(folder)
    if not tokenizer.is_fast:
        raise ConfigError(f"{setting}: '{folder}' has no tokenizer.json; save a fast tokenizer there.")
    with quiet_transformers(), LOADING:
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model, tokenizer


def _new(shape: TextEncoderSettings, tokenizer: Any, seed: int) -> Any:
    """Return a BERT with random weights."""
    from transformers import BertConfig, BertModel

    if shape.width % shape.attention_heads:
        raise ConfigError(
            f"settings.encoder: width is {shape.width}, expected a multiple of attention_heads "
            f"({shape.attention_heads})."
        )
    config = BertConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=512,
        pad_token_id=first_token(tokenizer.pad_token_id, 0),
    )
    with seeded(seed):
        return BertModel(config, add_pooling_layer=False)


def _fingerprint_of_new(model: Any, tokenizer_folder: Path) -> str:
    """Return a hash of shape and vocabulary; the weights come from one site before round 1."""
    config = {k: v for k, v in model.config.to_dict().items() if k not in ("transformers_version", "dtype")}
    total = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    total.update((tokenizer_folder / "tokenizer.json").read_bytes())
    return total.hexdigest()


def positions(model: Any) -> int:
    """Return the positions an encoder has; RoBERTa's begin behind its padding index."""
    count = int(getattr(model.config, "max_position_embeddings", None) or 512)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    behind = getattr(table, "padding_idx", None)
    return count if behind is None else count - int(behind) - 1


def first_token(*numbers: int | None) -> int:
    """Return the first number of a token that is not None; ConfigError if all are."""
    token = next((number for number in numbers if number is not None), None)
    if token is None:
        raise ConfigError("backbone.folder: the tokenizer names no token for a text's begin, end or padding.")
    return int(token)
