# SPDX-License-Identifier: Apache-2.0
"""Dual adapters through PEFT: what computes, what learns, and Eq. 6 (test vector 10)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.adapters.lora import LoraAdapters, LoraSettings, weighted_sum
from medflare.models.backbone import load_backbone

SETTINGS = LoraSettings(rank=4, lora_alpha=8)
IDS = torch.tensor([[1, 5, 6, 7, 8]])


@pytest.fixture
def adapters(tiny_backbone: Path) -> LoraAdapters:
    model = load_backbone(tiny_backbone, "fp32").model
    result = LoraAdapters(model, SETTINGS, (GENERIC, ANCHOR, SPECIALISED), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name in result.names:
        for parameter in result.parameters(name):
            with torch.no_grad():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return result


def logits(adapters: LoraAdapters) -> torch.Tensor:
    out: torch.Tensor = adapters.peft(input_ids=IDS).logits.detach()
    return out


def deltas(adapters: LoraAdapters, name: str) -> list[torch.Tensor]:
    pairs = adapters.parameters(name)
    return [2.0 * b @ a for a, b in zip(pairs[::2], pairs[1::2], strict=True)]


def test_an_adapter_of_unequal_ranks_computes_its_products(adapters: LoraAdapters) -> None:
    state = adapters.state(SPECIALISED)
    first = min(name.removesuffix("lora_A.weight") for name in state if "lora_A" in name)
    a, b = f"{first}lora_A.weight", f"{first}lora_B.weight"
    state |= {a: torch.randn(9, state[a].shape[1]), b: torch.randn(state[b].shape[0], 9)}
    adapters.add_frozen("merged", state)
    kept = adapters.state("merged")
    assert {v.shape[0 if "lora_A" in n else 1] for n, v in kept.items()} == {9}
    for name in state:
        if "lora_A" in name:
            other = name.replace("lora_A", "lora_B")
            torch.testing.assert_close(kept[other] @ kept[name], state[other] @ state[name])
    layer = adapters._layers[0]
    assert layer.scaling["merged"] == layer.scaling[GENERIC] == 2.0


def test_vector_10_equal_copies_halve_the_local_part(adapters: LoraAdapters) -> None:
    adapters.copy(GENERIC, ANCHOR)
    layer = adapters._layers[0]
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(2))
    adapters.use((GENERIC, SPECIALISED), scales={GENERIC: 1.0, SPECIALISED: 0.5})
    generic, special = deltas(adapters, GENERIC)[0], deltas(adapters, SPECIALISED)[0]
    expected = layer.base_layer(x) + x @ generic.T + 0.5 * x @ special.T
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_only_named_adapters_learn(adapters: LoraAdapters) -> None:
    adapters.use((ANCHOR, SPECIALISED), train=(SPECIALISED,))
    adapters.peft(input_ids=IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in adapters.parameters(SPECIALISED))
    assert all(p.grad is None for name in (GENERIC, ANCHOR) for p in adapters.parameters(name))


def test_both_adapters_keep_gradients_when_both_are_in_one_loss(adapters: LoraAdapters) -> None:
    adapters.use((GENERIC,), train=(GENERIC, SPECIALISED))
    first = adapters.peft(input_ids=IDS, labels=IDS).loss
    adapters.use((ANCHOR, SPECIALISED), train=(GENERIC, SPECIALISED))
    (first + adapters.peft(input_ids=IDS, labels=IDS).loss).backward()
    assert all(p.grad is not None for name in (GENERIC, SPECIALISED) for p in adapters.parameters(name))


def test_one_adapter_is_copied_to_another(adapters: LoraAdapters) -> None:
    before = logits(adapters)
    adapters.load(GENERIC, {name: torch.zeros_like(v) for name, v in adapters.state(GENERIC).items()})
    assert not torch.equal(logits(adapters), before)
    adapters.copy(SPECIALISED, GENERIC)
    assert all(
        torch.equal(a, b)
        for a, b in zip(deltas(adapters, GENERIC), deltas(adapters, SPECIALISED), strict=True)
    )


def test_weighted_sum_is_exact_and_opens_in_plain_peft(
    adapters: LoraAdapters, tiny_backbone: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapters.use((GENERIC, SPECIALISED), scales={GENERIC: 0.75, SPECIALISED: 0.25})
    expected = logits(adapters)
    state, rank = weighted_sum([adapters.state(GENERIC), adapters.state(SPECIALISED)], [0.75, 0.25], 2.0)
    save_file(state, tmp_path / "adapter_model.safetensors")
    config = adapters.config_dict() | {"r": rank, "lora_alpha": 2 * rank}
    (tmp_path / "adapter_config.json").write_text(__import__("json").dumps(config))
    base = AutoModelForCausalLM.from_pretrained(tiny_backbone, dtype=torch.float32)
    assert torch.allclose(
        PeftModel.from_pretrained(base, tmp_path)(input_ids=IDS).logits, expected, atol=1e-5
    )
