# SPDX-License-Identifier: Apache-2.0
"""Bytes of frozen weights in each precision, from shapes alone.

bitsandbytes packs the linear layers of a language model. Embeddings, norms and the output layer stay in the
type in which the model is loaded: a fifth of Llama-3-8B's bytes in NF4 are its embeddings, and as many its
output layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

LOADED = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16, "nf4": torch.bfloat16}
"""Precision -> type in which a language model is loaded before anything is packed."""
PACKED = {"int8": 1.0, "nf4": 0.516}
"""Bytes of a packed weight; NF4 in blocks of 64 whose scales are packed in turn."""


def shapes_of(folder: Path, precision: str) -> Any:
    """Return a folder's causal language model on torch's meta device: shapes and types without values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=LOADED[precision])


def frozen_bytes(network: nn.Module, precision: str) -> int:
    """Return the bytes of a network's weights that do not learn.

    Args:
        network: with weights of the types in which they are loaded; those of a language model are packed.
    """
    packed = packed_weights(network) if precision in PACKED else set()
    total = 0.0
    for weight in network.parameters():
        if not weight.requires_grad:
            size = PACKED[precision] if id(weight) in packed else weight.element_size()
            total += size * weight.numel()
    return round(total)


def packed_weights(network: nn.Module) -> set[int]:
    """Return the `id` of each weight that bitsandbytes packs: of linear layers of a language model."""
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D

    found: set[int] = set()
    for model in network.modules():
        if isinstance(model, PreTrainedModel) and (last := model.get_output_embeddings()) is not None:
            linear = (part for part in model.modules() if isinstance(part, (nn.Linear, Conv1D)))
            found |= {id(part.weight) for part in linear if part.weight is not last.weight}
    return found


def bytes_of_folder(folder: Path) -> dict[str, int]:
    """Return precision -> bytes of the weights of a folder's causal language model."""
    model = shapes_of(folder, "fp32").requires_grad_(False)
    return {precision: frozen_bytes(model.to(dtype), precision) for precision, dtype in LOADED.items()}
