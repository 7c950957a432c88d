# SPDX-License-Identifier: Apache-2.0
"""Steps of a decoder of the Llama family with their gradients written out, for training on processors.

Autograd over PyTorch's small operations stores and casts what these steps never need: with LoRA that is more
than half of a step's processor time. Values and gradients are those of transformers and PEFT to the
rounding of fp32, and in bf16 about as far from fp32 as theirs;
tests/unit/models/test_fused_decoder.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from medflare.models.packed_batch import PackedRows

ROWS_OF_LOGITS = 64
"""Answer tokens whose logits are in memory together: 64 of a vocabulary of 49,152 in fp32 are 13 MB."""


class LowRankLinear(Function):
    """x Wᵀ + bias + (x Aᵀ) Bᵀ with a frozen W, all in the type of x.

    Args:
        x: (M, in); weight: (out, in); bias: (out,) or None.
        a: (ρ, in); b: (out, ρ), which holds LoRA's scale.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        low = x @ a.T  # (M, ρ)
        ctx.save_for_backward(x, weight, a, b, low)
        return F.linear(x, weight, bias).addmm_(low, b.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        (grad,) = grads
        below = grad @ b  # (M, ρ)
        to_x, _, _, to_a, to_b = ctx.needs_input_grad
        return (
            (grad @ weight).addmm_(below, a) if to_x else None,
            None,
            None,
            below.T @ x if to_a else None,
            grad.T @ low if to_b else None,
        )


class RMSNorm(Function):
    """x / √(mean x² + ε) in fp32, times a frozen weight in the type of x; x is (M, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        values = x.float()
        inverse = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)  # (M, 1)
        ctx.save_for_backward(x, weight, inverse)
        return (values * inverse).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        normed = x.float() * inverse
        grad = (grads[0] * weight).float()
        share = (grad * normed).mean(-1, keepdim=True)
        return normed.mul_(share).neg_().add_(grad).mul_(inverse).to(x.dtype), None, None


class GatedUnit(Function):
    """silu(gate) · up of a tensor that holds both side by side, (M, 2 · F) -> (M, F)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        (grad,) = grads
        gate, up = gate_up.chunk(2, -1)
        out = torch.empty_like(gate_up)
        torch.mul(grad, F.silu(gate), out=out[:, gate.shape[1] :])
        out[:, : gate.shape[1]] = torch.ops.aten.silu_backward(grad * up, gate)
        return out


def rotated(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Return heads turned by their positions' angles, or `back` by as much.

    Args:
        x: (M, heads, D); cos, sin: (M, D), whose halves are alike.
    """
    half = x.shape[-1] // 2
    c, s = cos[:, None, :half], sin[:, None, :half]
    first, second = x[..., :half], x[..., half:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sign = -1 if back else 1
    torch.mul(first, c, out=out[..., :half]).addcmul_(second, s, value=-sign)
    torch.mul(second, c, out=out[..., half:]).addcmul_(first, s, value=sign)
    return out


@dataclass(slots=True)
class PackedLayout:
    """Facts of a packed batch that attention of every layer needs.

    Attributes:
        queries, paths, kept: as PackedRows has them.
        bias: 0 for what a query reads, -∞ for the rest, (N·G, heads/G·Q, T).
        once: a place among the N·T of `paths` for each of the M nodes.
        again, nodes: the other places, and their nodes.
    """

    queries: Tensor
    paths: Tensor
    kept: Tensor
    bias: Tensor
    once: Tensor
    again: Tensor
    nodes: Tensor
    heads: int
    groups: int

    @classmethod
    def of(cls, packed: PackedRows, heads: int, groups: int, dtype: torch.dtype) -> PackedLayout:
        rows, _, length = packed.visible.shape
        seen = packed.visible
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
        bias = bias[:, None, None].expand(-1, groups, heads // groups, -1, -1)
        places = packed.paths.flatten()  # (N·T,)
        order = places.sort(stable=True)
        first = torch.cat([torch.ones_like(places[:1], dtype=torch.bool), order.values.diff() > 0])
        again = order.indices[~first]
        return cls(
            packed.queries, packed.paths, packed.kept, bias.reshape(rows * groups, -1, length),
            order.indices[first], again, places[again], heads, groups,
        )  # fmt: skip

    def summed_by_node(self, values: Tensor) -> Tensor:
        """Sum what the places of `paths` hold, (N·T, W), for each node, (M, W)."""
        return values[self.once].index_add_(0, self.nodes, values[self.again])


class PackedAttention(Function):
    """Rotary attention along the rows of a packed batch, from what the three projections yield.

    Args:
        qkv: (M, (heads + 2 · groups) · D); cos, sin: (M, D).
        layout: of the batch; scale: of the scores. Returns (M, heads · D).
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, layout: PackedLayout, scale: float
    ) -> Tensor:
        heads, groups = layout.heads, layout.groups
        parts = qkv.view(len(qkv), heads + 2 * groups, -1)
        turned = rotated(parts[:, : heads + groups], cos, sin)
        queries = _by_group(turned[:, :heads][layout.queries] * scale, groups)  # (N·G, heads/G·Q, D)
        keys = _by_group(turned[:, heads:][layout.paths], groups)  # (N·G, T, D)
        values = _by_group(parts[:, heads + groups :][layout.paths], groups)  # (N·G, T, D)
        scores = torch.baddbmm(layout.bias, queries, keys.mT)
        shares = scores.softmax(-1)
        ctx.save_for_backward(queries, keys, values, shares, cos, sin)
        ctx.layout, ctx.scale = layout, scale
        return _by_row(shares @ values, *layout.queries.shape)[layout.kept]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, shares, cos, sin = ctx.saved_tensors
        layout: PackedLayout = ctx.layout
        heads, groups, width = layout.heads, layout.groups, cos.shape[1]
        rows, count = layout.queries.shape
        mixed = grads[0].new_zeros(rows * count, heads * width).index_copy_(0, layout.kept, grads[0])
        grad = _by_group(mixed.view(rows, count, heads, width), groups)  # (N·G, heads/G·Q, D)
        to_scores = torch._softmax_backward_data(grad @ values.mT, shares, -1, shares.dtype)
        to_queries = _by_row(to_scores @ keys, rows, count)[layout.kept].mul_(ctx.scale)
        to_keys = _by_row(to_scores.mT @ queries, *layout.paths.shape)
        to_values = _by_row(shares.mT @ grad, *layout.paths.shape)
        along = layout.summed_by_node(torch.cat([to_keys, to_values], 1)).view(-1, 2 * groups, width)
        turned = torch.cat([to_queries.view(-1, heads, width), along], 1)  # (M, heads + 2 · groups, D)
        turned[:, : heads + groups] = rotated(turned[:, : heads + groups], cos, sin, back=True)
        return turned.flatten(1), None, None, None, None


def _by_group(x: Tensor, groups: int) -> Tensor:
    """(N, Q, heads, D) -> (N·G, heads/G·Q, D)."""
    rows, count, _, width = x.shape
    return x.view(rows, count, groups, -1, width).permute(0, 2, 3, 1, 4).reshape(rows * groups, -1, width)


def _by_row(x: Tensor, rows: int, count: int) -> Tensor:
    """(N·G, heads/G·Q, D) -> (N·Q, heads · D)."""
    width = x.shape[-1]
    grouped = x.view(rows, x.shape[0] // rows, -1, count, width)
    return grouped.permute(0, 3, 1, 2, 4).reshape(rows * count, -1)


class AnswerLoss(Function):
    """Summed negative log-likelihood in fp32 of tokens under a frozen output layer, some rows at a time.

    The gradient is made with the value, so that no logits are kept.

    Args:
        states: (K, H); weight: (vocabulary, H); targets: (K,).
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        grads: list[Tensor] = []
        for part, tokens in zip(states.split(ROWS_OF_LOGITS), targets.split(ROWS_OF_LOGITS), strict=True):
            shares = torch.log_softmax(part @ weight.T, -1, dtype=torch.float32)  # (rows, vocabulary)
            total -= shares.gather(1, tokens[:, None]).sum()
            if ctx.needs_input_grad[0]:
                shares.exp_().scatter_add_(1, tokens[:, None], -torch.ones_like(shares[:, :1]))
                grads.append(shares.to(part.dtype) @ weight)
        ctx.save_for_backward(*([torch.cat(grads)] if grads else []))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return (grad * grads[0]).to(grad.dtype), None, None
