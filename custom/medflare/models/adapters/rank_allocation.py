# SPDX-License-Identifier: Apache-2.0
"""AdaLoRA's rank budget, decided once for all sites from their summed importance (Zhang et al. 2023).

Every site sends the importance of its triplets as a declared sum and gets the total of all sites back; the
same total gives the same masks everywhere. Local pruning, as AdaLoRA has it, would make ranks disagree.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def budget(round_number: int, rounds: int, first: int, last: int, warm: float, final: float) -> int:
    """Return the number of singular values that stay in a round (AdaLoRA, Eq. 12).

    All at first, then down a cubic to `last`.

    Args:
        round_number: 0-based; rounds: of the run; warm, final: shares of the rounds before and after.
    """
    start, end = warm * rounds, (1 - final) * (rounds - 1)
    if round_number <= start:
        return first
    if round_number >= end:
        return last
    left = 1 - (round_number - start) / (end - start)
    return int(last + (first - last) * left**3)


def masks(importance: Mapping[str, Tensor], kept: int) -> dict[str, Tensor]:
    """Return masks, True where a singular value stays: the `kept` most important of all modules together.

    importance: module -> (ρ,) scores. Ties go to the first in order of module name and position, so that
    every site decides alike.
    """
    names = sorted(importance)
    scores = torch.cat([importance[name].double() for name in names])
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[torch.argsort(scores, descending=True, stable=True)[:kept]] = True
    parts = chosen.split([len(importance[name]) for name in names])
    return dict(zip(names, parts, strict=True))


def normalised(importance: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Return scores of one site that add up to `weight`, so that the scale of its loss does not count."""
    total = sum(float(scores.double().sum()) for scores in importance.values())
    factor = weight / total if total > 0 else 0.0
    return {name: (scores.double() * factor).float() for name, scores in importance.items()}


class TripletImportance:
    """Smoothed sensitivity times uncertainty of every weight of one adapter (AdaLoRA, Eq. 8 to 11).

    PEFT's `RankAllocator` keeps the same numbers, but decides by itself on steps of one process.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self.sensitivity: dict[str, Tensor] = {}
        self.uncertainty: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        """Smooth |w · ∂L/∂w| of every weight that has a gradient; to be called after a backward pass."""
        for name, weight in weights.items():
            if weight.grad is None:
                continue
            now = (weight * weight.grad).abs().detach().float()
            old = self.sensitivity.get(name, torch.zeros_like(now))
            smooth = self.beta * old + (1 - self.beta) * now
            spread = self.uncertainty.get(name, torch.zeros_like(now))
            self.sensitivity[name] = smooth
            self.uncertainty[name] = self.beta * spread + (1 - self.beta) * (now - smooth).abs()

    def triplets(self, modules: Mapping[str, tuple[str, str, str]]) -> dict[str, Tensor]:
        """Return module -> (ρ,) importance of its triplets: of λ_i, plus means over P's column and Q's row.

        modules: module -> names of its Q (ρ, d_in), Λ (ρ, 1) and P (d_out, ρ).
        """
        out = {}
        for module, (q, values, p) in modules.items():
            scores = [self.sensitivity[n] * self.uncertainty[n] for n in (q, values, p)]
            out[module] = (scores[0].mean(1) + scores[1].view(-1) + scores[2].mean(0)).cpu()
        return out
