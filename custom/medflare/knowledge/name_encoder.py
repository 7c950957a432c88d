# SPDX-License-Identifier: Apache-2.0
"""Names as vectors of a local encoder such as SapBERT, PubMedBERT or MiniLM.

How a folder wants its tokens pooled is what sentence-transformers wrote into it, `1_Pooling/config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.frozen_encoder import FrozenEncoder

Pooling = Literal["mean", "cls"]
POOLING = Path("1_Pooling") / "config.json"
MODULES = "modules.json"
SWITCH = "pooling_mode_"
SWITCHED = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
APPLIED = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are applied here; a cosine normalises."""
READ = (".safetensors", ".json", ".txt", ".model")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


class NameEncoder:
    """An encoder with frozen weights: all sites get the same vectors.

    Args:
        pooling: None takes what the folder says.

    Raises ConfigError as `check_encoder` does.
    """

    def __init__(self, folder: Path, pooling: Pooling | None = None) -> None:
        self.pooling = check_encoder(folder, pooling)
        self.frozen = FrozenEncoder(folder, "knowledge.encoder")

    def embed(self, texts: Sequence[str], batch: int = 64) -> np.ndarray:
        """Return embeddings (N, hidden) in float32, not of unit norm; a too long text is cut at its end.

        The mean counts the tokens at begin and end too, as sentence-transformers does.
        """
        embeddings = np.zeros((len(texts), self.frozen.width), np.float32)
        for encoded_batch in self.frozen.batches(self.frozen.ids(texts), batch):
            embeddings[encoded_batch.places] = _pooled(
                encoded_batch.hidden, encoded_batch.mask, self.pooling
            ).numpy()
        return embeddings


def check_encoder(folder: Path, pooling: Pooling | None = None) -> Pooling:
    """Return how the tokens of a folder's encoder are pooled, without opening its weights.

    Raises ConfigError for a folder that is missing or has no safetensors weights, configuration or tokenizer,
    that holds a decoder, or whose pooling is not known.
    """
    if not folder.is_dir():
        raise ConfigError(f"knowledge.encoder: there is no folder '{folder}'. Copy the encoder there.")
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"knowledge.encoder: '{folder}' has no *.safetensors file. Pickled weights (.bin) are not "
            "loaded; convert them with transformers' save_pretrained."
        )
    if not any(list(folder.glob(name)) for name in TOKENIZERS):
        raise ConfigError(
            f"knowledge.encoder: '{folder}' has no tokenizer; expected one of {', '.join(TOKENIZERS)}. Copy "
            "it from where the encoder comes from."
        )
    _check_kind(folder)
    return _pooling(folder, pooling)


def encoder_files(folder: Path) -> list[Path]:
    """Return the files of a folder that change what an encoder says; weights in other formats are none."""
    files = [file for file in folder.iterdir() if file.suffix in READ and file.is_file()]
    pooling = folder / POOLING
    return sorted([*files, pooling] if pooling.is_file() else files)


def _check_kind(folder: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    model_type = _json(folder / "config.json").get("model_type")
    if model_type not in ENCODERS:
        raise ConfigError(
            f"knowledge.encoder: '{folder}' holds a {model_type}, which is no encoder: the vector of a name "
            "would know one side of each word only. Expected one such as bert, roberta, deberta-v2 or mpnet; "
            "a decoder is for nearest_by: backbone."
        )


def _pooling(folder: Path, wanted: Pooling | None) -> Pooling:
    """Return the pooling of the settings, else of the folder; no guess, as a wrong one would go unnoticed."""
    if (folder / MODULES).is_file():
        kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in _json(folder / MODULES, list)]
        foreign = [module_type for module_type in kinds if module_type not in APPLIED]
        if foreign:
            raise ConfigError(
                f"knowledge.encoder: {folder / MODULES} names {', '.join(foreign)}; only "
                f"{', '.join(APPLIED)} are applied here. Choose another encoder."
            )
    if wanted is not None:
        return wanted
    if not (folder / POOLING).is_file():
        raise ConfigError(
            f"knowledge.encoder: '{folder}' has no {POOLING}, so how a name's tokens become one vector is "
            "not known. Set knowledge.pooling to cls (SapBERT) or mean."
        )
    on = _modes(_json(folder / POOLING))
    if on == ["mean"] or on == ["cls"]:
        return "mean" if on == ["mean"] else "cls"
    raise ConfigError(
        f"knowledge.encoder: {folder / POOLING} asks for {' and '.join(on) or 'no pooling'}; expected mean "
        "or cls alone. Choose another encoder, or set knowledge.pooling."
    )


def _modes(pooling: Mapping[str, Any]) -> list[str]:
    """Return the modes of a pooling file: a switch each in older files, one or more names in newer ones."""
    modes = pooling.get("pooling_mode")
    if modes is None:
        switched = [key for key, value in pooling.items() if key.startswith(SWITCH) and value]
        return [SWITCHED.get(key, key.removeprefix(SWITCH)) for key in switched]
    return [modes] if isinstance(modes, str) else [str(mode) for mode in modes]


def _json(file: Path, expected: type[Any] = dict) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"knowledge.encoder: {file} cannot be read ({type(error).__name__}).") from None
    if not isinstance(content, expected):
        raise ConfigError(f"knowledge.encoder: {file} is no file of a model: expected a {expected.__name__}.")
    return content


def _pooled(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return the pooled embeddings: tokens (N, T, hidden) and their mask (N, T) -> (N, hidden)."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)
