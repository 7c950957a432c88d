# SPDX-License-Identifier: Apache-2.0
"""DDCS's step on products of LoRA factors: Σ w_i B_i A_i, merged; sites restart from B = 0 (DD-4).

Algorithm 1 of DDCS adds products, its text differences of parameters. Both are the same where ΔW restarts
from 0 in every round and products are merged into the base weights (rule `lora_stack`). Weights do
not sum to one here: what was broadcast, M + B A, gets Σ w_i (B_i A_i − B A).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from medflare.aggregation.lora import (
    MERGED,
    A,
    B,
    LoraPair,
    best_of_rank,
    lora_pair,
    named_pair,
    restarted_pair,
    stacked,
    stems,
    truncation_error,
)
from medflare.core.errors import ConfigError
from medflare.core.tensors import State


class ProductRestart:
    """The LoRA pairs of a round, and the step they make together.

    Args:
        most_rank: rank of the merged factors above which the nearest ones of that rank take their place; None
            for min(d_in, d_out), which loses nothing.
    """

    def __init__(self, most_rank: int | None = None) -> None:
        self.most_rank = most_rank
        self._state: State = {}
        self._received: dict[str, LoraPair] = {}
        self._pairs: dict[str, dict[str, LoraPair]] = {}
        self.checks: dict[str, float] = {}

    def begin(self, state: State) -> State:
        """Take the pairs out of the state that was broadcast; return the rest of it, without merged factors.

        Raises:
            ConfigError: the state holds no LoRA pair.
        """
        names = [name for name in state if not name.startswith(MERGED)]
        pairs = stems(names)
        if not pairs:
            raise ConfigError(
                "mode 'product_restart': no LoRA factors are among the shared tensors. Set `sharing: stack` "
                "in the job's settings, or mode 'factor_delta' in rule_settings."
            )
        self._state, self._received = state, {stem: lora_pair(state, stem) for stem in pairs}
        self._pairs = {stem: {} for stem in pairs}
        self.checks = {"update_norm": 0.0, "merged_rank": 0.0, "truncation": 0.0}
        factors = {stem + end for stem in pairs for end in (A, B)}
        return {name: state[name] for name in names if name not in factors}

    def add(self, site: str, delta: State) -> None:
        """Keep a site's pairs."""
        for stem, base in self._received.items():
            self._pairs[stem][site] = LoraPair(base.a + delta[stem + A], base.b + delta[stem + B])

    def finish(self, weights: Mapping[str, float]) -> State:
        """Return the new pairs, of which every B is 0, and the new merged factors. weights: site -> w_i."""
        return {name: value for stem in self._received for name, value in self._joined(stem, weights).items()}

    def _joined(self, stem: str, weights: Mapping[str, float]) -> State:
        base, sites = self._received[stem], self._pairs[stem]
        kept = [site for site in sites if weights[site]]
        # Σ w_i B_i A_i; with W = Σ w_i, the step is that less W B A, and M + B A + step needs (1 − W) B A
        step = stacked([sites[site] for site in kept], [weights[site] for site in kept])
        product = step
        if bool(base.b.any()):
            rest = sum(weights[site] for site in kept)
            step = stacked([step, base], [1.0, -rest])
            product = stacked([product, base], [1.0, 1 - rest])
        merged = MERGED + stem.removeprefix("adapter.")
        if merged + A in self._state:
            product = stacked([lora_pair(self._state, merged), product], [1.0, 1.0])
        product = self._compressed(product)
        self.checks["update_norm"] = math.hypot(self.checks["update_norm"], step.norm())
        self.checks["merged_rank"] = max(self.checks["merged_rank"], float(product.a.shape[0]))
        return restarted_pair(self._state, stem, base) | named_pair(self._state, stem, product, merged)

    def _compressed(self, product: LoraPair) -> LoraPair:
        """Return the same product, or where its rank is too high the nearest one of the rank allowed."""
        full = min(product.a.shape[1], product.b.shape[0])
        most = min(full, self.most_rank or full)
        if product.a.shape[0] <= most:
            return product
        best, singular = best_of_rank(product, most)
        self.checks["truncation"] = max(self.checks["truncation"], truncation_error(singular, most))
        return best
