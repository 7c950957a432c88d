# SPDX-License-Identifier: Apache-2.0
"""Report generators get from the fused decoder the outputs and gradients of transformers and PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.adapters.lora import ALL_PROJECTIONS, LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.encoders import EncoderSettings
from medflare.models.fused_decoder import SHAPES, filled_up
from medflare.models.fused_reading import FusedReader
from medflare.models.report_generator import Decoded, DecodingSettings, ModelSettings, ReportGenerator

ENCODER = EncoderSettings(name="small", weights="none", image_size=32, token_grid=2)
IMAGES = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
CODES = torch.arange(4 * 14).view(4, 14) % 4
REPORTS = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(1))
KEPT = torch.arange(9) < torch.tensor([[9], [3], [6], [1]])
"""Reports of 9, 3, 6 and 1 tokens."""
NEAR = 5e-5
"""Rounding of fp32 at values near 1, which large adapters amplify."""
LEARNERS: dict[str, dict[str, Any]] = {
    "one adapter": {"active": (GENERIC,), "train": (GENERIC,)},
    "two adapters": {
        "active": (ANCHOR, SPECIALISED),
        "train": (SPECIALISED,),
        "scales": {ANCHOR: 0.5, SPECIALISED: 0.25},
    },
}


def build(
    folder: Path, targets: tuple[str, ...] = ("q_proj", "v_proj"), fused: bool = True
) -> ReportGenerator:
    """Return a generator whose adapters all add something."""
    settings = ModelSettings(encoder=ENCODER, lora=LoraSettings(rank=4, lora_alpha=8, targets=targets))
    names = (GENERIC, ANCHOR, SPECIALISED)
    model = ReportGenerator(load_backbone(folder, "fp32"), settings, names, seed=0).eval()
    random = torch.Generator().manual_seed(2)
    for name in names:
        for parameter in model.adapters.parameters(name):
            parameter.data.normal_(std=0.2, generator=random)
    if not fused:
        model.fused = None
    return model


def decoded(model: ReportGenerator, present: Tensor | None = None) -> Decoded:
    prefix = model.prefix(model.encode_images(IMAGES), CODES)
    return model.decode(prefix, REPORTS, KEPT, present)


def gradients(model: ReportGenerator) -> dict[str, Tensor]:
    """Return the gradients of a loss of logits and hidden states, of all that learns."""
    out = decoded(model)
    (out.logits.logsumexp(-1).mean() + out.hidden.square().mean()).backward()
    learning = [*model.named_parameters(), *model.adapters.peft.named_parameters()]
    return {name: p.grad for name, p in learning if p.grad is not None}


@pytest.mark.parametrize("used", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ALL_PROJECTIONS], ids=["two", "all"])
def test_outputs_and_gradients_are_those_of_transformers_and_peft(
    tiny_backbone: Path, used: dict[str, Any], targets: tuple[str, ...]
) -> None:
    fused, plain = build(tiny_backbone, targets), build(tiny_backbone, targets, fused=False)
    for model in (fused, plain):
        model.adapters.use(**used)
    assert fused._fused_decoder() is not None
    with torch.no_grad():
        ours, theirs = decoded(fused), decoded(plain)
    assert ours.logits.shape[0] == ours.hidden.shape[0] == 19
    assert torch.allclose(ours.logits, theirs.logits, atol=NEAR)
    assert torch.allclose(ours.hidden, theirs.hidden, atol=NEAR)
    found, expected = gradients(fused), gradients(plain)
    assert found.keys() == expected.keys()
    learnt = {name for name in (GENERIC, ANCHOR, SPECIALISED) if any(f".{name}." in n for n in found)}
    assert learnt == set(used["train"])
    assert all(torch.allclose(found[name], expected[name], atol=NEAR) for name in found)


def test_a_prefix_that_is_padded_at_its_left(tiny_backbone: Path) -> None:
    length = build(tiny_backbone).prefix(build(tiny_backbone).encode_images(IMAGES), CODES).shape[1]
    present = torch.arange(length) >= torch.tensor([[0], [4], [1], [7]])
    with torch.no_grad():
        ours = decoded(build(tiny_backbone), present)
        theirs = decoded(build(tiny_backbone, fused=False), present)
    assert torch.allclose(ours.logits, theirs.logits, atol=NEAR)


def test_adapters_take_turns_without_frozen_weights_being_joined_anew(tiny_backbone: Path) -> None:
    """FedMRG changes the adapter twice a mini-batch."""
    model, plain = build(tiny_backbone), build(tiny_backbone, fused=False)
    assert model.fused is not None
    with torch.no_grad():
        decoded(model)
        joined = model.fused._blocks[0].qkv.weight.data_ptr()
        for used in (*LEARNERS.values(), *LEARNERS.values()):
            for one in (model, plain):
                one.adapters.use(**used)
            assert torch.allclose(decoded(model).logits, decoded(plain).logits, atol=NEAR)
            assert model.fused._blocks[0].qkv.weight.data_ptr() == joined


def test_tokens_are_filled_up_with_padding_behind_them_and_none_before() -> None:
    present = torch.zeros(3, 60, dtype=torch.bool)
    present[0, 4:30], present[1, :60], present[2, 10:20] = True, True, True  # 96 places
    filled = filled_up(present)
    assert int(filled.sum()) == 2 * SHAPES
    assert bool((filled >= present).all())
    assert not filled[0, :4].any()
    assert not filled[2, :10].any()
    added = filled & ~present
    assert added[0, 30:60].all(), "row by row, behind what is there"
    assert added[2].nonzero().flatten().tolist() == [20, 21]
    short = torch.ones(1, 5, dtype=torch.bool)
    assert torch.equal(filled_up(short), short), "no padding, nothing to fill up with"
    assert torch.equal(filled_up(filled), filled)


def test_rows_that_need_a_gradient_of_their_own_are_left_to_transformers(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(tiny_backbone)
    monkeypatch.setattr(model.fused, "states", None)
    prefix = model.prefix(model.encode_images(IMAGES), CODES)
    assert len(model.decode(prefix, REPORTS, KEPT, alone=True).logits) == 19


def test_a_gradient_of_a_gradient_is_refused_and_not_wrong(tiny_backbone: Path) -> None:
    model = build(tiny_backbone)
    model.adapters.use((GENERIC,), train=(GENERIC,))
    loss = decoded(model).logits.square().mean()
    grads = torch.autograd.grad(loss, model.adapters.parameters(GENERIC), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(g.square().sum() for g in grads).backward()


def drafts(model: ReportGenerator, used: dict[str, Any], least: int, padded: bool) -> list[str]:
    """Return greedy reports of 25 tokens at most, of a decoder whose rows end at different places."""
    model.adapters.use(**used)
    with torch.no_grad():
        for weight in model.backbone.model.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)
        prefix = model.prefix(model.encode_images(IMAGES), CODES)
    present = torch.arange(prefix.shape[1]) >= torch.tensor([[0], [4], [1], [7]])
    decoding = DecodingSettings(beams=1, max_new_tokens=25, min_new_tokens=least, repetition_penalty=1.0)
    return model.write(prefix, decoding, present if padded else None)


@pytest.mark.parametrize("used", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.parametrize(("least", "padded"), [(0, False), (0, True), (9, True)])
def test_greedy_reports_are_those_of_generate(
    tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch, used: dict[str, Any], least: int, padded: bool
) -> None:
    expected = drafts(build(tiny_backbone, ALL_PROJECTIONS, fused=False), used, least, padded)
    model = build(tiny_backbone, ALL_PROJECTIONS)
    monkeypatch.setattr(model.backbone.model, "generate", None)
    assert drafts(model, used, least, padded) == expected
    assert len(set(expected)) > 1


def test_a_report_that_is_done_leaves_its_batch(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    read = FusedReader.read_embedded

    def counted(self: FusedReader, embedded: Tensor, *rest: Any) -> Any:
        rows.append(len(embedded))
        return read(self, embedded, *rest)

    monkeypatch.setattr(FusedReader, "read_embedded", counted)
    model = build(tiny_backbone)
    tokenizer = model.backbone.tokenizer
    word, end = tokenizer(" heart", add_special_tokens=False)["input_ids"][0], tokenizer.eos_token_id
    ends = iter([[word, end, word, word], [end, word, word], [word, word], [word, end], [end]])
    monkeypatch.setattr(
        "medflare.models.report_writing._choose", lambda model, states, barred: torch.tensor(next(ends))
    )
    written = drafts(model, LEARNERS["one adapter"], 0, padded=True)
    assert [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in written] == [1, 0, 4, 3]
    assert rows == [4, 3, 2, 2, 1]


def test_after_a_draft_the_frozen_weights_are_what_they_were(tiny_backbone: Path) -> None:
    model = build(tiny_backbone)
    before = decoded(model).logits
    greedy = DecodingSettings(beams=1, max_new_tokens=3, min_new_tokens=0, repetition_penalty=1.0)
    model.generate(IMAGES, greedy)
    assert torch.equal(decoded(model).logits, before)


def test_an_adapter_beside_the_blocks_is_left_to_transformers(tiny_backbone: Path) -> None:
    model = build(tiny_backbone, ("q_proj", "lm_head"))
    assert model._fused_decoder() is None
    assert build(tiny_backbone, ("q_proj", "down_proj"))._fused_decoder() is not None
