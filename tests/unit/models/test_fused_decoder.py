# SPDX-License-Identifier: Apache-2.0
"""The fused decoder gives loss and gradients of transformers and PEFT, and steps aside where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_packed_batch import ROWS
from test_text_model import PROJECTIONS, build, gradients, same
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from medflare.models.adapters.base import GENERIC
from medflare.models.fused_decoder import MOST_ON_A_GPU, Projections, can_fuse
from medflare.models.fused_operations import AnswerLoss, PackedLayout
from medflare.models.packed_batch import pack
from medflare.models.text_model import TextModel


def unfused(model: TextModel) -> TextModel:
    """Return the model as transformers and PEFT compute it, on the same weights."""
    model.fused = None
    return model


@pytest.fixture
def no_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer computes no token more than is read, of batches as small as the tests'."""
    monkeypatch.setattr("medflare.models.fused_decoder.SHAPES", 1)


@pytest.mark.usefixtures("no_filling")
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("targets", [PROJECTIONS, ("q_proj", "v_proj"), ("up_proj", "down_proj")])
def test_loss_and_gradients_are_those_of_transformers_and_peft(family: str, targets: tuple[str, ...]) -> None:
    fused, plain = build(family, targets=targets), unfused(build(family, targets=targets))
    assert fused.fused is not None
    assert fused.fused.available()
    (loss, tokens), (expected, count) = fused.loss(ROWS), plain.loss(ROWS)
    assert (tokens, loss.item()) == (count, pytest.approx(expected.item(), abs=1e-5))
    assert same(gradients(fused, ROWS), gradients(plain, ROWS))


@pytest.mark.parametrize("filled_to", [1, 16, 64])
def test_the_last_layer_computes_what_is_read_and_no_more(
    filled_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medflare.models.fused_decoder.SHAPES", filled_to)
    model, computed = build(), list[int]()
    real = Projections.__call__

    def counted(self: Projections, x: Tensor, adapted: Any) -> Tensor:
        computed.append(len(x))
        return real(self, x, adapted)

    monkeypatch.setattr(Projections, "__call__", counted)
    loss = model.loss(ROWS)[0].item()
    assert loss == pytest.approx(unfused(build()).loss(ROWS)[0].item(), abs=1e-5)
    packed = pack([row.ids for row in ROWS], [row.start for row in ROWS], "cpu")
    nodes, read, layers = packed.ids.shape[1], len(packed.sources.unique()), 2
    filled = min(-(-read // filled_to) * filled_to, nodes)
    # of a layer's four products only that of queries, keys and values needs every node
    assert computed == [nodes] * (4 * layers - 3) + [filled] * 3
    assert read < nodes


def test_in_bf16_the_gradient_is_as_near_to_fp32_as_before() -> None:
    exact = torch.cat([g.flatten() for g in gradients(build(), ROWS)])
    errors = []
    for model in (build(precision="bf16"), unfused(build(precision="bf16"))):
        found = torch.cat([g.flatten() for g in gradients(model, ROWS)])
        errors.append(float((found - exact).norm() / exact.norm()))
    assert 0 < errors[0] < min(1.3 * errors[1], 0.05)


def test_answers_of_more_rows_than_one_part_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build().loss(ROWS)[0].item()
    monkeypatch.setattr("medflare.models.fused_operations.ROWS_OF_LOGITS", 3)
    assert build().loss(ROWS)[0].item() == pytest.approx(whole, abs=1e-5)


def test_frozen_weights_are_not_stored_twice_and_merging_leaves_them_right() -> None:
    model, plain = build(), unfused(build())
    model.loss(ROWS)
    layer = model.backbone.model.get_decoder().layers[0].self_attn
    bases = [part.get_base_layer().weight for part in (layer.q_proj, layer.k_proj, layer.v_proj)]
    assert len({weight.untyped_storage().data_ptr() for weight in bases}) == 1
    with model.adapters.merged():
        pass
    assert model.loss(ROWS)[0].item() == pytest.approx(plain.loss(ROWS)[0].item(), abs=1e-5)


def test_weights_that_were_replaced_are_seen() -> None:
    model, plain = build(), unfused(build())
    model.loss(ROWS)
    for one in (model, plain):
        weight = one.backbone.model.get_decoder().layers[1].mlp.gate_proj.get_base_layer().weight
        weight.data = weight.data * 1.5
    assert model.loss(ROWS)[0].item() == pytest.approx(plain.loss(ROWS)[0].item(), abs=1e-5)


def test_frozen_factors_have_no_gradient() -> None:
    model = build()
    factors = model.adapters.parameters(GENERIC)
    for factor in factors[::2]:
        factor.requires_grad_(False)
    gradients(model, ROWS)
    assert [factor.grad is None for factor in factors] == [True, False] * (len(factors) // 2)


def test_merged_adapters_are_computed_once() -> None:
    model = build()
    beside = model.loss(ROWS)[0]
    with model.adapters.merged():
        assert all(layer.pairs == () for layer in model.adapters.adapted_layers().values())
        merged = model.loss(ROWS)[0]
    assert torch.allclose(merged, beside, rtol=1e-5)
    assert torch.equal(model.loss(ROWS)[0], beside)


def test_gradient_checkpointing_is_left_to_transformers() -> None:
    model = build()
    fused = model.fused
    assert fused is not None
    assert fused.available()
    model.checkpoint_gradients()
    assert not fused.available()


# ---- on a GPU, which is not there: fake tensors have devices without values, and refuse to mix them --------


def test_layout_and_loss_lie_where_the_batch_does() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()):
        packed = pack([row.ids for row in ROWS], [row.start for row in ROWS], "cuda:0")
        layout = PackedLayout.of(packed.rows, 2, 1, torch.bfloat16)
        states = torch.empty(70, 8, device="cuda:0", requires_grad=True)
        targets = torch.zeros(70, dtype=torch.long, device="cuda:0")
        loss = AnswerLoss.apply(states, torch.empty(30, 8, device="cuda:0"), targets)
    tensors = [getattr(layout, name) for name in ("bias", "once", "again", "nodes")]
    assert {str(tensor.device) for tensor in (*tensors, loss)} == {"cuda:0"}


class OnACard:
    """A model as `can_fuse` looks at it, on a GPU."""

    device, is_quantized = torch.device("cuda:0"), False

    def __init__(self, hidden: int) -> None:
        self.config = build().backbone.model.config
        self.config.hidden_size = hidden

    def get_output_embeddings(self) -> Any:
        return torch.nn.Linear(2, 2, bias=False)


def test_on_a_gpu_only_a_small_model_where_it_is_asked_for() -> None:
    small, large = OnACard(MOST_ON_A_GPU), OnACard(MOST_ON_A_GPU + 1)
    assert can_fuse(small, gpu=True)
    assert not can_fuse(small)
    assert not can_fuse(large, gpu=True)
    small.hf_device_map = {"model.layers.0": "cuda:0", "model.layers.1": "cuda:1"}  # type: ignore[attr-defined]
    assert not can_fuse(small, gpu=True), "its layers lie on several cards"
