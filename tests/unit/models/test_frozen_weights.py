# SPDX-License-Identifier: Apache-2.0
"""Bytes of frozen weights from shapes alone are those of models that are really loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from medflare.models.backbone import load_backbone
from medflare.models.frozen_weights import LOADED, bytes_of_folder, frozen_bytes, packed_weights, shapes_of


def loaded_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights in memory, without the scales of packed ones."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loaded_model_has_the_bytes_of_its_shapes(tiny_backbone: Path, precision: str) -> None:
    model = load_backbone(tiny_backbone, precision, device="cpu").model
    assert bytes_of_folder(tiny_backbone)[precision] == loaded_bytes(model)


@pytest.mark.parametrize(("precision", "each"), [("nf4", 0.5), ("int8", 1.0)])
def test_bitsandbytes_packs_the_layers_that_are_counted_as_packed(
    tiny_backbone: Path, precision: str, each: float
) -> None:
    """Without scales on both sides: in so small a model they take another share than in a large one."""
    model = load_backbone(tiny_backbone, precision, device="cpu").model
    shapes = shapes_of(tiny_backbone, precision)
    packed = packed_weights(shapes)
    count = sum(weight.numel() for weight in shapes.parameters() if id(weight) in packed)
    plain = sum(w.numel() * w.element_size() for w in shapes.parameters() if id(w) not in packed)
    assert count > 0
    assert plain > 0
    assert loaded_bytes(model) == plain + each * count


def test_embeddings_of_a_packed_model_are_bf16(tiny_backbone: Path) -> None:
    for precision in ("nf4", "int8"):
        model = load_backbone(tiny_backbone, precision, device="cpu").model
        assert model.get_input_embeddings().weight.dtype == torch.bfloat16, precision


def test_embeddings_and_output_layer_are_not_packed(tmp_path: Path) -> None:
    """Llama-3-8B in NF4: 5.70 GB were measured on an H200 (docs/results/gpu.md)."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 128256}
    LlamaConfig(**sizes, num_key_value_heads=8, intermediate_size=14336).save_pretrained(tmp_path)
    found = bytes_of_folder(tmp_path)
    assert list(found) == list(LOADED)
    assert found["nf4"] == pytest.approx(5.70e9, rel=0.005)
    assert found["int8"] == pytest.approx(9.08e9, rel=0.005)
    assert found["bf16"] == found["fp32"] // 2 == 2 * 8_030_261_248


def test_weights_that_learn_and_networks_beside_the_language_model_are_not_packed(
    tiny_backbone: Path,
) -> None:
    model, beside = shapes_of(tiny_backbone, "nf4"), nn.Linear(10, 10, bias=False)
    both = nn.ModuleList([model, beside.requires_grad_(False)])
    assert frozen_bytes(both, "nf4") == 4 * 100, "the model learns as a whole"
    assert packed_weights(beside) == set()
