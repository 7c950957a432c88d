# SPDX-License-Identifier: Apache-2.0
"""One battery over every parameter-efficient method: what learns, travels, stays, and opens in PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.adapters.registry import (
    PEFT_METHODS,
    PeftChoice,
    attach,
    effective_settings,
    settings_of_file,
)
from medflare.models.backbone import load_backbone
from medflare.models.peft_folder import Card, PeftFolder
from medflare.models.text_model import TextModel

IDS = torch.tensor([[1, 5, 6, 7, 8, 9], [1, 8, 9, 10, 11, 12]])
LORA = LoraSettings(rank=4, lora_alpha=8)
SMALL: dict[str, dict[str, Any]] = {
    "lora": {},
    "adalora": {"rank": 4, "target_rank": 2, "alpha": 16},
    "fedpara": {"rank": 3, "alpha": 12},
    "vera": {"rank": 16},
    "prefix": {"tokens": 5},
    "prompt": {"tokens": 5},
    "p_tuning": {"tokens": 5, "width": 24},
    "bottleneck": {"reduction": 4},
}
PEFT_OPENS = [name for name, row in PEFT_METHODS.items() if row.peft_opens]
CARD = Card(
    job="j", method="m", run_id="r", base_model="tiny", fingerprint="f", sites=2, rounds=1, metrics={}
)


def block(method: str) -> Any:
    return TypeAdapter(PeftChoice).validate_python({"method": method, **SMALL[method]})


class Made:
    """The adapter of one method on a fresh copy of the tiny backbone."""

    def __init__(self, folder: Path, method: str, seed: int = 3) -> None:
        self.base = load_backbone(folder, "fp32").model
        self.plain = self.base(input_ids=IDS).logits.detach()
        self.frozen = {n: p.detach().clone() for n, p in self.base.named_parameters()}
        self.adapters = attach(self.base, effective_settings(block(method), LORA), (GENERIC,), seed)
        self.adapters.use((GENERIC,))

    @torch.no_grad()
    def logits(self) -> Tensor:
        found: Tensor = self.base(input_ids=IDS).logits
        return found

    def learn(self, steps: int = 8, lr: float = 0.02) -> list[float]:
        self.adapters.use((GENERIC,), train=(GENERIC,))
        optimiser = torch.optim.AdamW(self.adapters.parameters(GENERIC), lr=lr)
        losses = []
        for _ in range(steps):
            logits = self.base(input_ids=IDS).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())
            optimiser.zero_grad(set_to_none=True)
            (loss + self.adapters.penalty()).backward()
            optimiser.step()
            self.adapters.after_step()
            losses.append(loss.item())
        self.adapters.use((GENERIC,))
        return losses

    def base_now(self) -> dict[str, Tensor]:
        """The backbone's own weights, wherever PEFT has moved them."""
        parameters = {id(p) for p in self.adapters.parameters(GENERIC)}
        named = (
            (n.replace(".base_layer", ""), p)
            for n, p in self.base.named_parameters()
            if id(p) not in parameters
        )
        return {n: p.detach() for n, p in named if n in self.frozen}


@pytest.fixture(params=sorted(PEFT_METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(tiny_backbone: Path, method: str) -> Made:
    return Made(tiny_backbone, method)


def test_the_table_and_the_settings_name_the_same_methods() -> None:
    assert set(SMALL) == set(PEFT_METHODS)
    assert all(block(name).method == name for name in PEFT_METHODS)


def test_what_learns_is_what_travels(made: Made) -> None:
    adapters = made.adapters
    adapters.use((GENERIC,), train=(GENERIC,))
    learning = {id(p) for p in adapters.peft.parameters() if p.requires_grad}
    assert learning == {id(p) for p in adapters.parameters(GENERIC)}
    state, live = adapters.state(GENERIC), adapters.shared_parameters(GENERIC)
    assert set(state) == set(live)
    assert {id(p) for p in live.values()} == learning
    assert sum(v.numel() for v in state.values()) == sum(p.numel() for p in adapters.parameters(GENERIC))
    assert all(v.dtype == torch.float32 and GENERIC not in n for n, v in state.items())


def test_a_new_adapter_changes_nothing_where_the_method_starts_so(made: Made, method: str) -> None:
    assert torch.allclose(made.logits(), made.plain, atol=1e-6) == PEFT_METHODS[method].starts_as_identity


def test_loss_falls_and_the_backbone_stays(made: Made) -> None:
    losses = made.learn()
    assert losses[-1] < losses[0] - 0.01
    now = made.base_now()
    assert set(now) == set(made.frozen)
    assert all(torch.equal(now[n], value) for n, value in made.frozen.items())
    assert any(bool(p.grad.abs().sum() > 0) for p in made.adapters.parameters(GENERIC))


def test_state_is_a_copy_that_another_site_can_load(made: Made, tiny_backbone: Path, method: str) -> None:
    made.learn()
    state, expected = made.adapters.state(GENERIC), made.logits()
    other = Made(tiny_backbone, method)
    other.adapters.load(GENERIC, state)
    assert torch.allclose(other.logits(), expected, atol=1e-6)
    for value in state.values():
        value.zero_()
    assert torch.allclose(made.logits(), expected, atol=1e-6)


def test_foreign_and_missing_names_are_refused(made: Made) -> None:
    state = made.adapters.state(GENERIC)
    first = min(state)
    with pytest.raises(KeyError, match="names differ"):
        made.adapters.load(GENERIC, state | {"odd": torch.zeros(1)})
    with pytest.raises(KeyError, match="names differ"):
        made.adapters.load(GENERIC, {n: v for n, v in state.items() if n != first})


def test_the_mean_of_two_sites_loads_and_computes(made: Made, tiny_backbone: Path, method: str) -> None:
    other = Made(tiny_backbone, method)
    made.learn(3)
    other.learn(6, lr=0.01)
    one, two = made.adapters.state(GENERIC), other.adapters.state(GENERIC)
    mean = {name: (one[name] + two[name]) / 2 for name in one}
    made.adapters.load(GENERIC, mean)
    assert all(torch.allclose(made.adapters.state(GENERIC)[n], v) for n, v in mean.items())
    assert torch.isfinite(made.logits()).all()


def test_start_values_depend_on_the_seed_alone(tiny_backbone: Path, method: str) -> None:
    one = Made(tiny_backbone, method).adapters.state(GENERIC)
    torch.rand(7)  # what else draws changes nothing
    two = Made(tiny_backbone, method).adapters.state(GENERIC)
    other = Made(tiny_backbone, method, seed=4).adapters.state(GENERIC)
    assert all(torch.equal(one[n], two[n]) for n in one)
    if method != "vera":  # its start values are constants; the seed makes A and B
        assert any(not torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("name", ["prefix", "prompt", "p_tuning"])
def test_virtual_tokens_that_fill_the_base_model_are_refused(tiny_backbone: Path, name: str) -> None:
    many = TypeAdapter(PeftChoice).validate_python({"method": name, "tokens": 512})
    with pytest.raises(ConfigError, match="has 512 positions"):
        attach(load_backbone(tiny_backbone, "fp32").model, many, (GENERIC,), 0)


# ---- the result --------------------------------------------------------------------------------------------


def written(made: Made, folder: Path) -> Path:
    """The result folder as the server writes it, from what travelled."""
    config = made.adapters.config_dict() | {"base_model_name_or_path": "tiny"}
    persistor = PeftFolder()
    export = {"file": "model", "untravelled": made.adapters.not_communicated()}
    backbone = BackboneFacts(name="b", fingerprint="f")
    plain = json.loads(json.dumps(config))
    persistor.expect(SiteDescription(backbone=backbone, adapter_config=plain, export=export))
    state = {f"adapter.{name}": value for name, value in made.adapters.state(GENERIC).items()}
    return persistor.write(folder, state, CARD)


@pytest.mark.parametrize("method", PEFT_OPENS, indirect=False)
def test_plain_peft_opens_the_result_and_says_the_same(
    tiny_backbone: Path, tmp_path: Path, method: str
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapted = Made(tiny_backbone, method)
    adapted.learn()
    folder = written(adapted, tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tiny_backbone, dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        opened_logits = opened(input_ids=IDS).logits[:, -IDS.shape[1] :]
    assert not torch.allclose(opened_logits, adapted.plain, atol=1e-3)
    assert torch.allclose(opened_logits, adapted.logits(), atol=1e-5)


def test_medflare_opens_the_result_and_says_the_same(
    made: Made, tiny_backbone: Path, tmp_path: Path, method: str
) -> None:
    from medflare.models.result_files import read_json, read_tensors

    made.learn()
    folder = written(made, tmp_path / "adapter")
    config = read_json(folder / "adapter_config.json")
    other = Made(tiny_backbone, method)
    base = load_backbone(tiny_backbone, "fp32").model
    other.adapters = attach(
        base, effective_settings(*settings_of_file(block(method), LORA, config)), (GENERIC,), 99
    )
    other.base = base
    other.adapters.load_file_tensors(GENERIC, read_tensors(folder / "adapter_model.safetensors"))
    assert torch.allclose(other.logits(), made.logits(), atol=1e-5)


def test_only_what_peft_opens_claims_that_it_does(made: Made, tmp_path: Path, method: str) -> None:
    text = (written(made, tmp_path / "adapter") / "README.md").read_text(encoding="utf-8")
    assert ("PeftModel.from_pretrained" in text) == (method in PEFT_OPENS)


# ---- generation --------------------------------------------------------------------------------------------


@torch.no_grad()
def by_hand(made: Made, ids: Tensor, count: int) -> Tensor:
    """Greedy tokens without a cache."""
    start = ids.shape[1]
    for _ in range(count):
        ids = torch.cat([ids, made.base(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[:, start:]


def generated(made: Made, **inputs: Tensor) -> Tensor:
    found: Tensor = made.base.generate(
        **inputs, do_sample=False, max_new_tokens=5, min_new_tokens=5, pad_token_id=0
    )
    return found


def test_generation_with_a_cache_is_what_it_is_without(made: Made) -> None:
    made.learn(3)
    expected = by_hand(made, IDS, 5)
    made.base.generation_config.eos_token_id = None
    ones = torch.ones_like(IDS)
    assert torch.equal(generated(made, input_ids=IDS, attention_mask=ones)[:, IDS.shape[1] :], expected)
    embedded = made.base.get_input_embeddings()(IDS)
    assert torch.equal(generated(made, inputs_embeds=embedded, attention_mask=ones), expected)


def test_padding_on_the_left_changes_nothing(made: Made) -> None:
    made.learn(3)
    made.base.generation_config.eos_token_id = None
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), IDS], 1)
    mask = (torch.arange(padded.shape[1]) >= 3).long().expand(2, -1)
    tokens = generated(made, input_ids=padded, attention_mask=mask)[:, padded.shape[1] :]
    assert torch.equal(tokens, by_hand(made, IDS, 5))


def test_beams_work_with_image_tokens(made: Made) -> None:
    made.learn(3)
    embedded = made.base.get_input_embeddings()(IDS)
    ones = torch.ones_like(IDS)
    beams = {"num_beams": 3, "do_sample": False, "max_new_tokens": 5, "pad_token_id": 0}
    both = made.base.generate(inputs_embeds=embedded, attention_mask=ones, **beams)
    ids = made.base.generate(input_ids=IDS, attention_mask=ones, **beams)[:, IDS.shape[1] :]
    assert torch.equal(both, ids)


# ---- precision and memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, row in PEFT_METHODS.items() if row.gradient_checkpointing])
def test_gradient_checkpointing_leaves_the_gradients_as_they_are(tiny_backbone: Path, name: str) -> None:
    def gradients(checkpointing: bool) -> list[Tensor]:
        adapted = Made(tiny_backbone, name)
        adapted.learn(2)  # away from zero factors, whose partners have no gradient
        if checkpointing:
            adapted.base.gradient_checkpointing_enable({"use_reentrant": False})
            adapted.base.enable_input_require_grads()
        adapted.base.train()
        adapted.adapters.use((GENERIC,), train=(GENERIC,))
        for parameter in adapted.adapters.parameters(GENERIC):
            parameter.grad = None
        adapted.base(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        return [p.grad for p in adapted.adapters.parameters(GENERIC)]

    for one, two in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(one, two)


def test_nf4_learns_where_the_method_can_and_is_refused_where_not(tiny_backbone: Path, method: str) -> None:
    pytest.importorskip("bitsandbytes")
    base = load_backbone(tiny_backbone, "nf4").model
    if not PEFT_METHODS[method].quantised:
        with pytest.raises(ConfigError, match="packed int8 or NF4"):
            attach(base, effective_settings(block(method), LORA), (GENERIC,), 0)
        return
    adapters = attach(base, effective_settings(block(method), LORA), (GENERIC,), 0)
    adapters.use((GENERIC,), train=(GENERIC,))
    base.train()
    optimiser = torch.optim.AdamW(adapters.parameters(GENERIC), lr=0.02)
    losses = []
    for _ in range(8):
        with torch.autocast("cpu", torch.bfloat16):
            loss = base(input_ids=IDS, labels=IDS, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


# ---- the embedded decoder ----------------------------------------------------------------------------------

RATES = {"vera": 0.05, "prefix": 0.05, "prompt": 0.05}
"""Vectors and virtual tokens want higher rates than factors; 0.01 for all others."""
ASKED = ["Befund der Lunge?", "Befund des Herzens?"]
ANSWERED = ["Die Lunge ist beidseits frei belüftet.", "Das Herz ist nicht vergrößert."]


def test_the_embedded_decoder_learns_and_writes_what_it_learnt(method: str) -> None:
    lora = LoraSettings(rank=8, lora_alpha=16)
    model = TextModel(load_backbone(None, "fp32"), effective_settings(block(method), lora), (GENERIC,), 0)
    rows = model.sequences(ASKED, ANSWERED)
    before = model.mean_loss(rows, 2)
    model.adapters.use((GENERIC,), train=(GENERIC,))
    optimiser = torch.optim.AdamW(model.adapters.parameters(GENERIC), lr=RATES.get(method, 0.01))
    for _ in range(15):
        total, count = model.loss(rows)
        optimiser.zero_grad()
        (total / count + model.adapters.penalty()).backward()
        optimiser.step()
    assert model.mean_loss(rows, 2) < 0.97 * before
    assert all(item.text.strip() for item in model.answer(ASKED, [12, 12], 2))
