# SPDX-License-Identifier: Apache-2.0
"""Layers of one model over several GPUs: what lies where, and that no operation mixes two of them.

This machine has no GPU. torch's fake tensors have shapes and devices without values, and an operation on
tensors of two devices fails on them as it does on cards; the values themselves are compared on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from medflare.core.errors import ConfigError
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.continuations import _of_rows
from medflare.models.greedy_decoding import keep_slots
from medflare.models.layer_placement import gpus_of, place_layers, placement
from medflare.models.packed_batch import PackedBatch, PackedRows, pack
from medflare.models.text_model import Sequenced, TextModel

CARDS = ("cuda:0", "cuda:1", "cuda:2")
LORA = LoraSettings(rank=2, targets=("q_proj", "v_proj", "down_proj"))
ROWS = [Sequenced((1, 5, 6, 7, 8, 2), 4), Sequenced((1, 5, 6, 9, 2), 3), Sequenced((1, 4, 2), 2)]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
FAMILIES = {
    "llama": LlamaConfig(num_hidden_layers=7, vocab_size=200, **SIZES),
    "tied": Qwen2Config(num_hidden_layers=6, vocab_size=200, tie_word_embeddings=True, **SIZES),
    "gpt2": GPT2Config(n_layer=5, n_embd=64, n_head=2, vocab_size=200, n_positions=32,
                       bos_token_id=1, eos_token_id=2),
    "large vocabulary": LlamaConfig(num_hidden_layers=4, vocab_size=20000, **SIZES),
}  # fmt: skip


def shapes(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def place_of(name: str, places: dict[str, str]) -> str:
    found = [part for part in places if name == part or name.startswith(f"{part}.")]
    assert len(found) == 1, f"{name} has {len(found)} places"
    return places[found[0]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cards", [2, 3])
def test_every_part_has_one_place_and_layers_lie_in_their_order(family: str, cards: int) -> None:
    model = shapes(FAMILIES[family])
    places = placement(model, CARDS[:cards])
    held = dict.fromkeys(CARDS[:cards], 0)
    for name, parameter in model.named_parameters():
        held[place_of(name, places)] += parameter.numel()
    layers = {name: place for name, place in places.items() if name.rsplit(".", 1)[-1].isdigit()}
    assert len(layers) == model.config.num_hidden_layers
    assert list(layers.values()) == sorted(layers.values())
    assert set(layers.values()) == set(CARDS[:cards]), "no card without a layer"
    assert {place for name, place in places.items() if name not in layers} == {"cuda:0"}
    if family != "large vocabulary":  # whose embeddings alone are more than a card's share
        one = max(sum(p.numel() for p in model.get_submodule(name).parameters()) for name in layers)
        assert max(held.values()) - min(held.values()) <= 2 * one


def test_packed_layers_count_as_the_bytes_they_have() -> None:
    model = shapes(LlamaConfig(num_hidden_layers=8, vocab_size=700, **SIZES))
    first = {}
    for packed in (1.0, 0.28):
        places = placement(model, CARDS[:2], packed)
        first[packed] = sum(place == "cuda:0" for name, place in places.items() if ".layers." in name)
    assert first[0.28] < first[1.0], "beside embeddings that are not packed, fewer layers"


def test_more_devices_than_layers_are_refused(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 2 layers, and devices in site\.yaml names 3"):
        place_layers(tiny_backbone, CARDS, "bf16")


def test_gpus_that_are_not_there_are_named(tiny_backbone: Path) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("this machine has several GPUs")
    with pytest.raises(ConfigError, match=r"names 2 GPUs, and torch sees \d of them"):
        load_backbone(tiny_backbone, "fp32", "cuda", spread=2)


# ---- on fake cards ---------------------------------------------------------------------------------------


def _to_card(module: nn.Module, name: str, device: str, *unused: Any, **also_unused: Any) -> None:
    """Move a tensor as accelerate's function does, which makes parameters in a way that fake ones refuse."""
    holder, _, leaf = name.rpartition(".")
    owner = module.get_submodule(holder)
    _replace(owner, leaf, getattr(owner, leaf).to(device))


def _apply(module: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """Change all tensors as torch's method of modules does, which swaps parameters; fake ones cannot be."""
    for owner in module.modules() if recurse else [module]:
        for leaf, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is not None:
                _replace(owner, leaf, change(tensor))
    return module


def _replace(owner: nn.Module, leaf: str, value: Tensor) -> None:
    old = getattr(owner, leaf)
    if isinstance(old, nn.Parameter):
        setattr(owner, leaf, nn.Parameter(value.detach(), requires_grad=old.requires_grad))
    else:
        owner._buffers[leaf] = value


def fake(value: Any, mode: FakeTensorMode, device: str) -> Any:
    return mode.from_tensor(value).to(device) if isinstance(value, Tensor) else value


@pytest.fixture
def spread(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TextModel, FakeTensorMode]]:
    """A text model of four layers on two cards that are not there."""
    real = load_backbone(tiny_backbone, "fp32")
    config = real.model.config.__class__(**real.model.config.to_dict() | {"num_hidden_layers": 4})
    monkeypatch.setattr("accelerate.hooks.set_module_tensor_to_device", _to_card)
    monkeypatch.setattr(nn.Module, "_apply", _apply)
    with FakeTensorMode() as mode:
        model: Any = AutoModelForCausalLM.from_config(config)
        model.requires_grad_(False).eval()
        model = dispatch_model(
            model, placement(model, CARDS[:2]), skip_keys=model._skip_keys_device_placement
        )
        made = {field.name: getattr(real, field.name) for field in fields(Backbone)} | {"model": model}
        text = TextModel(Backbone(**made), LORA, ("generic",), seed=0)

        def packed(rows: Sequence[Sequenced]) -> PackedBatch:
            with unset_fake_temporarily():  # which rows begin alike depends on values
                batch = pack([row.ids for row in rows], [row.start for row in rows], "cpu")
            of_rows = {f.name: fake(getattr(batch.rows, f.name), mode, CARDS[0]) for f in fields(PackedRows)}
            others = {f.name: fake(getattr(batch, f.name), mode, CARDS[0]) for f in fields(PackedBatch)}
            return PackedBatch(**others | {"rows": PackedRows(**of_rows)})

        monkeypatch.setattr(text, "_packed", packed)
        yield text, mode


def test_forward_pass_and_optimiser_step_mix_no_cards(spread: tuple[TextModel, FakeTensorMode]) -> None:
    text, _ = spread
    text.adapters.use(("generic",), train=("generic",))
    learned = [p for p in text.adapters.peft.parameters() if p.requires_grad]
    assert gpus_of(text.adapters.peft) == [0, 1]
    assert {str(p.device) for p in learned} == set(CARDS[:2]), "each factor lies beside its layer"
    loss, tokens = text.loss(ROWS)
    assert (str(loss.device), tokens) == ("cuda:0", 5)
    for parameter in learned:  # torch's engine asks a real card for the backward pass
        parameter.grad = torch.zeros_like(parameter)
    nn.utils.clip_grad_norm_(learned, 1.0)
    torch.optim.AdamW(learned).step()
    state = text.adapters.state("generic")
    assert {value.device.type for value in state.values()} == {"cpu"}
    text.adapters.load("generic", state)


@torch.no_grad()
def test_reading_and_its_cache_mix_no_cards(spread: tuple[TextModel, FakeTensorMode]) -> None:
    text, _ = spread
    with text.reading():
        states, mask, cache = text.read_rows([[1, 5, 6, 7], [1, 5, 8, 9]])
        assert (states.shape, str(states.device)) == ((2, 4, 64), "cuda:0")
        assert [str(layer.keys.device) for layer in cache.layers] == ["cuda:0"] + ["cuda:1"] * 3
        again = _of_rows(cache, torch.tensor([0, 1, 1], device="cuda:0"))
        assert [layer.keys.shape[0] for layer in again.layers] == [3] * 4
        slots = torch.tensor([[0, 1, 3]], device="cuda:0")
        keep_slots(cache, torch.tensor([[1]], device="cuda:0"), slots)
        assert [tuple(layer.keys.shape[:3:2]) for layer in cache.layers] == [(1, 3)] * 4
        new = torch.tensor([[4]], device="cuda:0")
        states, cache = text.read(new, mask[:1], torch.full_like(new, 3), cache)
    assert (states.shape, str(states.device)) == ((1, 1, 64), "cuda:0")


def test_the_fake_cards_would_show_a_mixture(
    spread: tuple[TextModel, FakeTensorMode], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _ = spread
    monkeypatch.delattr(PackedRows, "to")  # the rows' ways stay on the first card
    with pytest.raises(RuntimeError, match="found at least two devices, cuda"):
        text.loss(ROWS)


# ---- values, on the processor ----------------------------------------------------------------------------


def test_a_model_behind_the_hooks_learns_and_answers_as_one_without(tiny_backbone: Path) -> None:
    plain, spread = load_backbone(tiny_backbone, "fp32"), load_backbone(tiny_backbone, "fp32", spread=2)
    places = place_layers(tiny_backbone, ["cpu", "cpu"], "fp32")
    assert set(places.values()) == {"cpu"}
    spread.model = dispatch_model(spread.model, places, force_hooks=True)
    assert hasattr(spread.model.model.layers[1], "_hf_hook")
    found = []
    for backbone in (plain, spread):
        text = TextModel(backbone, LORA, ("generic",), seed=0)
        text.fused = None  # what a processor computes by itself steps past the hooks
        text.adapters.use(("generic",), train=("generic",))
        learned = [p for p in text.adapters.peft.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(learned, lr=1e-2)
        for _ in range(3):
            optimiser.zero_grad()
            text.loss(ROWS)[0].backward()
            optimiser.step()
        answers = text.answer(["Which one is it?", "And this?"], [6, 4], batch=2)
        found.append((text.adapters.state("generic"), answers))
    assert any(bool(value.any()) for name, value in found[0][0].items() if "lora_B" in name), "it learned"
    assert all(torch.equal(value, found[1][0][name]) for name, value in found[0][0].items())
    assert found[0][1] == found[1][1]
