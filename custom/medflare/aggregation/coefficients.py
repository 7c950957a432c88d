# SPDX-License-Identifier: Apache-2.0
"""Step coefficients α of temporal residual aggregation (TAR-3, TAR-6).

A round of T visits is w_t = w_{t-1} + α_t (w̄_t − w_{t-1}), hence w_T = β_0 w_0 + Σ β_t w̄_t with β ≥ 0 and
Σ β = 1. w_0, which the paper's Theorem 1 leaves out of the hull, belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

AlphaMode = Literal["softmax", "sigmoid", "beta_softmax", "constant"]
Embedding = Literal["visit", "days"]
FLOOR = 1e-4
"""No residual is divided by an α below this."""
WIDTH, HIDDEN, CENTURY = 16, 32, 100.0
"""Embedding and hidden layer behind α, which the paper does not size; years that embeddings of time span."""


def remaining(alpha: Tensor) -> Tensor:
    """Return P_0 .. P_T, P_t = Π_{y>t} (1 − α_y): the share of w_t left in w_T. (T,) -> (T+1,)."""
    one = alpha.new_ones(1)
    return torch.cat([torch.cumprod((1 - alpha).flip(0), 0).flip(0), one])


def convex_weights(alpha: Tensor) -> Tensor:
    """Return β_0 .. β_T, the weights of w_0, w̄_1 .. w̄_T in w_T, with sum 1. α in [0, 1]: (T,) -> (T+1,)."""
    return torch.cat([alpha.new_ones(1), alpha]) * remaining(alpha)


def coefficients(beta: Tensor) -> Tensor:
    """Return α_t = β_t / Σ_{x≤t} β_x, which gives w_T the weights β ≥ 0, β_0 > 0. (T+1,) -> (T,)."""
    return beta[1:] / torch.cumsum(beta, 0)[1:]


def alpha_gradient(alpha: Tensor, slopes: Tensor, seen: Tensor) -> Tensor:
    """Return the first-order meta-gradient ∂L(w_T)/∂α_t = P_t ⟨g, Δ_t⟩, Δ_t = w̄_t − w_{t-1} held fixed.

    Args:
        alpha: (T,) as the round used them.
        slopes: (T,) ⟨g, w_t − w_{t-1}⟩ = α_t ⟨g, Δ_t⟩, g being the gradient of the loss at w_T.
        seen: (T,) bool; a visit that no site had left w as it was, so that its α_t took no step.
    """
    took = torch.where(seen, alpha, torch.zeros_like(alpha))
    products = torch.where(seen, slopes / alpha.clamp(min=FLOOR), torch.zeros_like(slopes))
    return remaining(took)[1:] * products


class Schedule(nn.Module):
    """α_1 .. α_T from u_t = MLP(e(t)) with parameters ψ, in float64; u = 0 at the start (Eq. 8; 3.2).

    At the start softmax gives α_t = 1/T, sigmoid `start`, and beta_softmax equal weights β = 1/(T+1).

    Args:
        visits: T.
        mode: "softmax" over the visits; "sigmoid", each for itself; "beta_softmax" over the weights β of what
            the round began with and of every visit, which are what is wanted after all; "constant", `value`
            for all.
        embedding: e(t) is learnt for every visit, or made from the time that passed.
        seed: of ψ; value: of "constant"; start: α_t of "sigmoid" before anything was learnt, within (0, 1).
    """

    years: Tensor

    def __init__(
        self,
        visits: int,
        mode: AlphaMode,
        embedding: Embedding,
        seed: int,
        value: float,
        start: float = 0.5,
    ) -> None:
        super().__init__()
        self.visits, self.mode, self.embedding, self.value = visits, mode, embedding, value
        self.offset = math.log(start / (1 - start))
        self.register_buffer("years", torch.zeros(2, visits, dtype=torch.float64))
        if mode == "constant":
            return
        draw = torch.Generator().manual_seed(seed)
        if embedding == "visit":
            self.table = nn.Parameter(torch.randn(visits, WIDTH, generator=draw, dtype=torch.float64))
        self.first = _normal((HIDDEN, WIDTH), draw)
        self.bias = nn.Parameter(torch.zeros(HIDDEN, dtype=torch.float64))
        self.last = nn.Parameter(torch.zeros(HIDDEN, dtype=torch.float64))
        if mode == "beta_softmax":
            self.begun = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def scores(self) -> Tensor:
        """Return the scores u: (T,)."""
        embedded = self.table if self.embedding == "visit" else elapsed(self.years)
        return torch.tanh(embedded @ self.first.T + self.bias) @ self.last

    def forward(self) -> Tensor:
        """Return α: (T,) float64, with gradients to ψ."""
        if self.mode == "constant":
            return torch.full((self.visits,), self.value, dtype=torch.float64)
        if self.mode == "sigmoid":
            return torch.sigmoid(self.scores() + self.offset)
        if self.mode == "softmax":
            return torch.softmax(self.scores(), 0)
        return coefficients(torch.softmax(torch.cat([self.begun, self.scores()]), 0))


def elapsed(years: Tensor) -> Tensor:
    """Return sines and cosines of elapsed time on a logarithmic scale.

    Args:
        years: (2, T) ≥ 0, since the visit before and since the first one.

    Returns:
        (T, WIDTH), the same for two visits at the same distance in time.
    """
    scaled = torch.log1p(years * 365.25) / math.log1p(CENTURY * 365.25)
    waves = torch.pi * scaled[:, :, None] * 2.0 ** torch.arange(WIDTH // 4, dtype=years.dtype)
    return torch.cat([waves.sin(), waves.cos()], 2).movedim(0, 1).flatten(1)


def _normal(shape: Sequence[int], draw: torch.Generator) -> nn.Parameter:
    values = torch.randn(tuple(shape), generator=draw, dtype=torch.float64)
    return nn.Parameter(values / math.sqrt(shape[-1]))
