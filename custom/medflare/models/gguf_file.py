# SPDX-License-Identifier: Apache-2.0
"""GGUF files: a language model in one file, as llama.cpp and Ollama use it, made a Hugging Face folder.

Quantised weights are de-quantised once; the site's `backbone.precision` quantises them anew where it says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medflare.core.errors import ConfigError
from medflare.models.backbone import LOADING, quiet_transformers

MAGIC = b"GGUF"
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3")
"""Decoders whose layers have the names that LoRA's targets expect, as transformers converts them."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata of a GGUF file.

    Attributes:
        quantisation: types of the tensors, each with how many are of it; parameters: in all of them.
    """

    architecture: str
    name: str
    licence: str
    quantisation: str
    parameters: int


def read_header(file: Path) -> GgufHeader:
    """Return what a GGUF file says of itself, once all its tensors are known to be there.

    Raises:
        ConfigError: the file is no GGUF, is cut short, or its architecture is not one that can be trained; or
            the package `gguf` is missing.
    """
    if not file.is_file():
        raise ConfigError(f"there is no file '{file}'.")
    with file.open("rb") as stream:
        magic = stream.read(len(MAGIC))
    if magic != MAGIC:
        raise ConfigError(f"'{file}' is no GGUF file: it begins with {magic!r}, not with {MAGIC!r}.")
    reader = _reader(file)
    end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    if not end or end > file.stat().st_size:
        raise _cut_short(file)
    architecture = _text(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"'{file}' holds a model of the architecture '{architecture}'; expected one of "
            f"{', '.join(ARCHITECTURES)}. Choose another model, or convert it to a Hugging Face folder "
            "yourself and add that."
        )
    return GgufHeader(
        architecture=architecture,
        name=_text(reader, "general.name"),
        licence=_text(reader, "general.license"),
        quantisation=_quantisation(reader),
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
    )


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder of bfloat16 safetensors with its tokenizer.

    Args:
        file: as `read_header` accepted it.
        folder: is made.

    Raises:
        ConfigError: transformers cannot convert the model or its tokenizer.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with LOADING, quiet_transformers():
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.quantization_config import GgufConfig

        where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
            )
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        except (ValueError, KeyError, OSError, RuntimeError, NotImplementedError) as error:
            raise ConfigError(f"'{file}' cannot be converted: {error}") from error
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _reader(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError(
            "reading a .gguf file needs the package 'gguf': pip install 'medflare[gguf]'."
        ) from error
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise _cut_short(file) from error


def _cut_short(file: Path) -> ConfigError:
    return ConfigError(
        f"'{file}' is cut short or damaged: it has {file.stat().st_size:,} bytes, and its table names more. "
        "Copy or download it again."
    )


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _quantisation(reader: Any) -> str:
    counts: dict[str, int] = {}
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    return ", ".join(f"{name} ×{count}" for name, count in sorted(counts.items(), key=lambda c: -c[1]))
