# SPDX-License-Identifier: Apache-2.0
"""Factors made for each patient: zero start, equality with written-out weights, gradients, beams."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraAdapters, LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.patient_adapter import (
    PROJECTION,
    Generator,
    PatientAdapter,
    PatientAdapterSettings,
    patient_term,
    target_layers,
)
from medflare.models.report_generator import DecodingSettings, search_arguments

K = 5
SETTINGS = PatientAdapterSettings(width=6, rank=2, lora_alpha=3)
GPT2 = (
    "attn.c_attn",
    "attn.c_proj",
    "crossattention.q_attn",
    "crossattention.c_attn",
    "crossattention.c_proj",
)
IDS = torch.tensor([[1, 5, 6, 7], [1, 9, 8, 4], [1, 3, 3, 3]])


def assigned(patients: int = 3, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.softmax(3 * torch.randn(patients, K, generator=draw), 1)


def moved(adapter: PatientAdapter, seed: int = 1) -> PatientAdapter:
    """Away from the zero start."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw).to(parameter.dtype))
    return adapter


def weight_of(layer: Any) -> tuple[nn.Parameter, bool]:
    """A layer's weight and whether it is GPT-2's (d_in, d_out)."""
    base = getattr(layer, "base_layer", layer)
    return base.weight, hasattr(base, "nf")


def materialised(model: nn.Module, adapter: PatientAdapter, q: Tensor) -> nn.Module:
    """The model of one patient with W_p = W + s B_p A_p written into a copy; q: (K,)."""
    embedded = adapter.projection(q[None])
    made = {n: g(embedded) for n, g in zip(adapter.names, adapter.generators, strict=True)}
    adapter.remove()
    expected_model = copy.deepcopy(model)
    for name, layer in target_layers(expected_model, adapter.settings.targets).items():
        a, b = made[name]
        weight, turned = weight_of(layer)
        change = adapter.settings.scale * (b[0] @ a[0]).detach().to(weight.dtype)
        weight.data += change.T if turned else change
    return expected_model


def llama(folder: Path) -> Any:
    return load_backbone(folder, "fp32").model


def with_cross_attention() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    sizes = {"n_embd": 24, "n_head": 2, "n_layer": 2, "vocab_size": 40, "n_positions": 32}
    config = GPT2Config(**sizes, add_cross_attention=True, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config).eval().requires_grad_(False)


def wrapped(folder: Path) -> Any:
    model = llama(folder)
    adapters = LoraAdapters(model, LoraSettings(rank=2, lora_alpha=4), (GENERIC,), seed=0)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapters.parameters(GENERIC):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model


# ---- what it computes --------------------------------------------------------------------------------------


def test_nothing_is_added_at_the_start(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    before = model(input_ids=IDS).logits
    adapter = PatientAdapter(model, SETTINGS, K, seed=0)
    with adapter.patients(assigned()):
        assert torch.equal(model(input_ids=IDS).logits, before)


def test_nothing_is_added_outside_and_nothing_stays_after_removal(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    before, names = model(input_ids=IDS).logits, {n for n, _ in model.named_parameters()}
    adapter = moved(PatientAdapter(model, SETTINGS, K, seed=0))
    assert torch.equal(model(input_ids=IDS).logits, before)
    with adapter.patients(assigned()):
        assert not torch.allclose(model(input_ids=IDS).logits, before, atol=1e-3)
    assert torch.equal(model(input_ids=IDS).logits, before)
    adapter.remove()
    adapter.remove()
    with adapter.patients(assigned()):
        assert torch.equal(model(input_ids=IDS).logits, before)
    assert not any(layer._forward_hooks for layer in model.modules())
    assert {n for n, _ in model.named_parameters()} == names


def test_an_error_inside_leaves_no_patients_behind(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    before = model(input_ids=IDS).logits
    adapter = moved(PatientAdapter(model, SETTINGS, K, seed=0))
    with pytest.raises(KeyError), adapter.patients(assigned()):
        raise KeyError
    assert torch.equal(model(input_ids=IDS).logits, before)


@pytest.mark.parametrize("kind", ["plain", "wrapped by PEFT"])
def test_a_batch_of_patients_equals_each_with_its_weights_written_out(tiny_backbone: Path, kind: str) -> None:
    model = llama(tiny_backbone) if kind == "plain" else wrapped(tiny_backbone)
    adapter, q = moved(PatientAdapter(model, SETTINGS, K, seed=0)), assigned()
    plain = model(input_ids=IDS).logits
    with adapter.patients(q):
        logits = model(input_ids=IDS).logits
    assert (logits - plain).abs().max() > 0.01
    for row in range(3):
        one = materialised(model, adapter, q[row])(input_ids=IDS[row : row + 1]).logits[0]
        assert torch.allclose(logits[row], one, atol=2e-5)


def test_cross_attention_with_layers_that_are_not_square() -> None:
    model = with_cross_attention()
    settings = PatientAdapterSettings(width=6, rank=2, lora_alpha=3, targets=GPT2)
    adapter, q = moved(PatientAdapter(model, settings, K, seed=0)), assigned()
    assert len(adapter.names) == 10
    assert not any(".mlp." in name for name in adapter.names)
    inputs = torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(2))
    with adapter.patients(q):
        logits = model(input_ids=IDS, encoder_hidden_states=inputs).logits
    for row in range(3):
        patient = materialised(model, adapter, q[row])
        one = patient(input_ids=IDS[row : row + 1], encoder_hidden_states=inputs[row : row + 1]).logits[0]
        assert torch.allclose(logits[row], one, atol=2e-5)


# ---- gradients ---------------------------------------------------------------------------------------------


def test_gradients_of_the_products_are_right() -> None:
    draw = torch.Generator().manual_seed(0)
    x, a, b = (
        torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 3, 5), (2, 2, 5), (2, 6, 2))
    )
    assert torch.autograd.gradcheck(patient_term, (x, a, b))


def test_gradients_are_those_of_weights_written_out() -> None:
    """A linear layer, in float64: d/dψ of a loss through W_p = W + s B_p A_p, patient by patient."""
    torch.manual_seed(0)
    layer = nn.Sequential()
    layer.add_module("q_proj", nn.Linear(7, 9))
    settings = PatientAdapterSettings(width=6, rank=2, lora_alpha=3, targets=("q_proj",))
    layer.double()
    adapter = moved(PatientAdapter(layer, settings, K, seed=0).double())
    q, x = assigned().double(), torch.randn(3, 4, 7, dtype=torch.float64)
    with adapter.patients(q):
        fast = torch.autograd.grad(torch.sin(layer(x)).sum(), list(adapter.parameters()))
    losses = []
    for row in range(3):
        a, b = adapter.generators[0](adapter.projection(q[row : row + 1]))
        weight = layer.q_proj.weight + settings.scale * (b[0] @ a[0])
        losses.append(torch.sin(nn.functional.linear(x[row], weight, layer.q_proj.bias)).sum())
    slow = torch.autograd.grad(torch.stack(losses).sum(), list(adapter.parameters()))
    for one, two in zip(fast, slow, strict=True):
        assert torch.allclose(one, two, atol=1e-11)
    assert all(x.abs().max() > 0 for x in slow)


def test_at_the_zero_start_only_b_learns_and_the_decoder_never(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    adapter = PatientAdapter(model, SETTINGS, K, seed=0)
    with adapter.patients(assigned()):
        model(input_ids=IDS, labels=IDS).loss.backward()
    for name, parameter in adapter.shared_parameters().items():
        assert parameter.grad is not None
        assert bool(parameter.grad.abs().max() > 0) == (".b." in name), name
    assert all(p.grad is None for p in model.parameters())


def test_client_adapter_and_patient_adapter_learn_together(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    adapters = LoraAdapters(model, LoraSettings(rank=2, lora_alpha=4), (GENERIC,), seed=0)
    adapters.use((GENERIC,), train=(GENERIC,))
    adapter = moved(PatientAdapter(model, SETTINGS, K, seed=0))
    with adapter.patients(assigned()):
        model(input_ids=IDS, labels=IDS).loss.backward()
    learnt = [*adapter.parameters(), *adapters.parameters(GENERIC)[1::2]]
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in learnt)


def test_checkpointed_activations_give_the_same_gradients(tiny_backbone: Path) -> None:
    model = llama(tiny_backbone)
    adapter, found = moved(PatientAdapter(model, SETTINGS, K, seed=0)), []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        adapter.zero_grad()
        with adapter.patients(assigned()):
            model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        found.append([p.grad.clone() for p in adapter.parameters()])  # type: ignore[union-attr]
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_a_decoder_in_bf16_gets_factors_of_fp32(tiny_backbone: Path) -> None:
    model = load_backbone(tiny_backbone, "bf16").model
    adapter = moved(PatientAdapter(model, SETTINGS, K, seed=0))
    with adapter.patients(assigned()):
        out = model(input_ids=IDS, labels=IDS)
        out.loss.backward()
    assert out.logits.dtype == torch.bfloat16
    assert {p.dtype for p in adapter.parameters()} == {torch.float32}
    assert all(torch.isfinite(p.grad).all() for p in adapter.parameters())  # type: ignore[arg-type]


# ---- generation --------------------------------------------------------------------------------------------


def written(model: Any, ids: Tensor, beams: int) -> list[list[int]]:
    tokens = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=beams,
        do_sample=False,
        max_new_tokens=8,
        min_new_tokens=8,
        pad_token_id=0,
    )
    rows: list[list[int]] = tokens.tolist()
    return rows


@pytest.mark.parametrize("beams", [1, 3])
def test_each_patient_of_a_batch_is_written_as_if_alone(tiny_backbone: Path, beams: int) -> None:
    model = llama(tiny_backbone)
    adapter, q = moved(PatientAdapter(model, SETTINGS, K, seed=0)), assigned()
    same = IDS[:1].expand(3, -1)
    with adapter.patients(q):
        together = written(model, same, beams)
    assert len({tuple(row) for row in together}) > 1
    for row in range(3):
        assert together[row] == written(materialised(model, adapter, q[row]), same[:1], beams)[0]


def drafted(model: Any, embedded: Tensor, beams: int) -> list[list[int]]:
    """As `ReportGenerator` drafts reports: from embeddings, with all its search arguments."""
    search = search_arguments(DecodingSettings(beams=beams, max_new_tokens=9, min_new_tokens=4), _Ends)
    mask = torch.ones(embedded.shape[:2], dtype=torch.long)
    rows: list[list[int]] = model.generate(inputs_embeds=embedded, attention_mask=mask, **search).tolist()
    return [[token for token in row if token != _Ends.pad_token_id] for row in rows]


class _Ends:
    eos_token_id, pad_token_id = 2, 0


def test_the_embedded_decoder_drafts_for_a_batch_of_patients() -> None:
    """Wrapped by PEFT, from embeddings, with beams; each patient as with weights written out."""
    model = load_backbone(None, "fp32").model
    LoraAdapters(model, LoraSettings(), (GENERIC,), seed=0)
    embedded = model.get_input_embeddings()(IDS[:1]).expand(3, -1, -1).detach()
    before = drafted(model, embedded, 3)
    adapter = PatientAdapter(model, PatientAdapterSettings(lora_alpha=4), 16, seed=0)
    q = torch.softmax(4 * torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), 1)
    with adapter.patients(q):
        assert drafted(model, embedded, 3) == before
    moved(adapter)
    with adapter.patients(q):
        together = drafted(model, embedded, 3)
    assert len({tuple(row) for row in together}) > 1
    assert drafted(model, embedded, 3) == before
    for row in range(3):
        assert together[row] == drafted(materialised(model, adapter, q[row]), embedded[:1], 3)[0]


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_writes_for_a_batch_of_patients(beams: int) -> None:
    """The paper's kind of model: GPT-2 with cross-attention to an image encoder."""
    from transformers import VisionEncoderDecoderModel, ViTConfig, ViTModel

    torch.manual_seed(1)
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    encoder = ViTModel(
        ViTConfig(**sizes, image_size=16, patch_size=8, num_channels=1), add_pooling_layer=False
    )
    model = VisionEncoderDecoderModel(encoder=encoder, decoder=with_cross_attention()).eval()
    settings = PatientAdapterSettings(width=6, rank=2, lora_alpha=30, targets=GPT2)
    adapter, q = moved(PatientAdapter(model, settings, K, seed=0)), assigned()
    pixels = torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(2)).expand(3, -1, -1, -1)

    def write(network: Any, rows: int) -> list[list[int]]:
        search = {"num_beams": beams, "do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8}
        ends = {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        found: list[list[int]] = network.generate(pixel_values=pixels[:rows], **search, **ends).tolist()
        return found

    with adapter.patients(q):
        together = write(model, 3)
    assert len({tuple(row) for row in together}) > 1
    for row in range(3):
        assert together[row] == write(materialised(model, adapter, q[row]), 1)[0]


@pytest.mark.parametrize(("rows", "shape"), [(4, (4, 3, 5)), (6, (6, 5))])
def test_rows_that_do_not_belong_to_patients_are_refused(rows: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="for 3 patients"):
        patient_term(torch.randn(*shape), torch.randn(3, 2, 5), torch.randn(3, 6, 2))


def test_an_assignment_of_other_components_is_refused(tiny_backbone: Path) -> None:
    adapter = PatientAdapter(llama(tiny_backbone), SETTINGS, K, seed=0)
    with pytest.raises(ValueError, match=r"expected \(patients, 5\)"), adapter.patients(torch.ones(3, 4)):
        pass


# ---- sizes, names, values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "millions"), [(768, 4.72), (64, 0.40)])
def test_tar_8_parameters_of_one_target(width: int, millions: float) -> None:
    with torch.device("meta"):
        generator = Generator(width, 4, 768, 768)
    assert round(sum(p.numel() for p in generator.parameters()) / 1e6, 2) == millions


def test_parameters_on_distilgpt2() -> None:
    """Σ ρ (d_in + d_out) (d + 1) over five targets of six layers, and 16 d + d."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(n_layer=6, add_cross_attention=True))
    adapter = PatientAdapter(model, PatientAdapterSettings(targets=GPT2), 16, seed=0)
    per_layer = (768 + 2304) + (768 + 768) + (768 + 768) + (768 + 1536) + (768 + 768)
    assert sum(p.numel() for p in adapter.projection.parameters()) == 17 * 64
    assert sum(p.numel() for p in adapter.generators.parameters()) == 6 * 4 * per_layer * 65 == 15_575_040


def test_every_site_starts_from_the_same_values_and_leaves_others_randomness_alone(
    tiny_backbone: Path,
) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one, two = (PatientAdapter(llama(tiny_backbone), SETTINGS, K, seed=4).state() for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_names_and_values_move_between_plain_and_wrapped_decoders(tiny_backbone: Path) -> None:
    one = moved(PatientAdapter(llama(tiny_backbone), SETTINGS, K, seed=0))
    two = PatientAdapter(wrapped(tiny_backbone), SETTINGS, K, seed=1)
    assert list(one.state()) == list(two.state()) == list(one.shared_parameters())
    two.load(one.state())
    assert all(torch.equal(value, two.state()[name]) for name, value in one.state().items())
    assert sum(name.startswith(PROJECTION) for name in one.state()) == 2
    with pytest.raises(KeyError, match="'extra'"):
        two.load(one.state() | {"extra": torch.ones(1)})


def test_targets_that_do_not_exist_are_named_with_those_that_do(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match=r"c_attn.*down_proj.*q_proj"):
        PatientAdapter(llama(tiny_backbone), PatientAdapterSettings(targets=("q_proj", "c_attn")), K, seed=0)
    with pytest.raises(ConfigError, match=r"'model\.norm' is a LlamaRMSNorm"):
        PatientAdapter(llama(tiny_backbone), PatientAdapterSettings(targets=("model.norm",)), K, seed=0)
