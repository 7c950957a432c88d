# SPDX-License-Identifier: Apache-2.0
"""Rules that know LoRA pairs: exact ones, and the best of the rank (ML-9).

Averaging factors is not averaging updates: Σ w_k B_k A_k differs from B̄ Ā by a weighted covariance. A pair is
two tensors of PEFT's names, `….lora_A.weight` (ρ, d_in) and `….lora_B.weight` (d_out, ρ), under any prefix.
Products here leave out the scale a/ρ, which is the same at all sites and belongs to the model.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medflare.aggregation.base import RuleFacts
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError
from medflare.core.tensors import State, accumulator_dtype
from medflare.core.update import Update

A, B = ".lora_A.weight", ".lora_B.weight"
MERGED = "merged."
INSTEAD = "rule 'freeze_a' with settings.sharing 'freeze_a', which is exact too"


class LoraPair(NamedTuple):
    """Factors of one ΔW = B A. a: (ρ, d_in); b: (d_out, ρ)."""

    a: Tensor
    b: Tensor

    def norm(self) -> float:
        """Return ‖B A‖ without forming it: ‖B A‖² = tr(BᵀB AAᵀ)."""
        a, b = self.a.double(), self.b.double()
        return math.sqrt(max(float(((b.mT @ b) * (a @ a.mT)).sum()), 0.0))


def stems(names: Iterable[str]) -> list[str]:
    """Return what comes before `.lora_A.weight` and `.lora_B.weight`, sorted.

    Raises:
        ConfigError: a factor is shared without its partner.
    """
    names = set(names)
    stems_found = {name.removesuffix(end) for end in (A, B) for name in names if name.endswith(end)}
    alone = sorted(stem for stem in stems_found if not {stem + A, stem + B} <= names)
    if alone:
        missing = B if alone[0] + A in names else A
        raise ConfigError(
            f"{len(alone)} LoRA factors are shared without their partner, for instance '{alone[0]}' without "
            f"'{missing[1:]}'. Set `sharing: factors` in the job's settings, or take rule 'weighted_mean'."
        )
    return sorted(stems_found)


def stacked(pairs: Sequence[LoraPair], weights: Sequence[float]) -> LoraPair:
    """Return one pair of rank m·ρ whose product is exactly Σ w_k B_k A_k: A = [A_1; …], B = [w_1 B_1 …]."""
    b = torch.cat([w * pair.b for w, pair in zip(weights, pairs, strict=True)], dim=1)
    return LoraPair(torch.cat([pair.a for pair in pairs], dim=0), b)


def best_of_rank(pair: LoraPair, rank: int) -> tuple[LoraPair, Tensor]:
    """Return the pair of rank ≤ `rank` nearest to B A in the Frobenius norm, and all singular values of B A.

    QR of both factors and SVD of the small core between them, in float64; d_out × d_in is never formed. The
    singular values are split evenly: B = U √S, A = √S Vᵀ.
    """
    qb, rb = torch.linalg.qr(pair.b.double())
    qa, ra = torch.linalg.qr(pair.a.double().mT)
    u, s, vt = torch.linalg.svd(rb @ ra.mT, full_matrices=False)
    root = s[:rank].sqrt()
    a, b = root[:, None] * (vt[:rank] @ qa.mT), (qb @ u[:, :rank]) * root
    return LoraPair(a.to(pair.a.dtype), b.to(pair.b.dtype)), s


def truncation_error(singular: Tensor, rank: int) -> float:
    """Return ‖what was cut‖ / ‖all‖ in the Frobenius norm; 0 for a product that is zero."""
    total = float(singular.square().sum())
    return math.sqrt(float(singular[rank:].square().sum()) / total) if total > 0 else 0.0


class FreezeA(WeightedMean):
    """A is one and the same everywhere and never shared, so the mean of the B is exact."""

    facts = RuleFacts(
        summary="LoRA with A fixed at all sites: the mean of the B factors, exact; needs only sums.",
        source="FFA-LoRA (Sun et al. 2024); ML-9",
        sharing=("freeze_a",),
    )

    def begin(self, global_state: State) -> None:
        shared = [name for name in global_state if name.endswith(A)]
        if shared:
            raise ConfigError(
                f"rule 'freeze_a': {len(shared)} LoRA factors A are among the shared tensors, for instance "
                f"'{shared[0]}'. Set `sharing: freeze_a` in the job's settings."
            )
        super().begin(global_state)


class _PairRule(WeightedMean):
    """Keeps each site's pairs until the end of the round; tensors that are no LoRA factor are averaged."""

    class Settings(WeightedMean.Settings):
        norm_clip: None = None
        """of no use here: the norm of factors says little about that of their product."""

    def begin(self, global_state: State) -> None:
        self._stems = stems(name for name in global_state if not name.startswith(MERGED))
        factors = {stem + end for stem in self._stems for end in (A, B)}
        plain = {n: v for n, v in global_state.items() if n not in factors and not n.startswith(MERGED)}
        super().begin(plain)
        self._state, self._received = (
            global_state,
            {stem: lora_pair(global_state, stem) for stem in self._stems},
        )
        self._pairs: dict[str, dict[str, LoraPair]] = {stem: {} for stem in self._stems}

    def add(self, site: str, update: Update) -> None:
        super().add(site, update)
        for stem, base in self._received.items():
            trained = LoraPair(base.a + update.delta[stem + A], base.b + update.delta[stem + B])
            self._pairs[stem][site] = trained

    def finish(self) -> State:
        new = super().finish()
        for stem in self._stems:
            sites = self._pairs.pop(stem)
            new |= self._combine_pairs(
                stem, stacked(list(sites.values()), [self._shares[site] for site in sites])
            )
        return new

    @abstractmethod
    def _combine_pairs(self, stem: str, stack: LoraPair) -> State:
        """Return the new tensors of one pair, from the stack whose product is Σ w_k B_k A_k."""


class LoraStack(_PairRule):
    """Exact: all sites' factors side by side, merged into the base weights everywhere; B restarts from 0.

    The new state holds the A that was broadcast, B = 0, and `merged.<name without 'adapter.'>`: factors whose
    product is the sum of all rounds' updates. A site computes with W0 + (a/ρ)(merged + B A), a/ρ being the
    scale of its own pair. Past rank min(d_in, d_out) the merged factors are factored anew, which is exact.
    """

    facts = RuleFacts(
        summary="LoRA, exact: factors side by side, merged into the base weights; sites restart from B = 0.",
        source="FLoRA (Wang et al. 2024); ML-9",
        needs="individual",
        instead=INSTEAD,
        streams=False,
        sharing=("stack",),
        extra_tensors=(MERGED,),
    )

    def begin(self, global_state: State) -> None:
        super().begin(global_state)
        self._checks = {"update_norm": 0.0, "merged_rank": 0.0}

    def _combine_pairs(self, stem: str, product: LoraPair) -> State:
        base = self._received[stem]
        step = stacked([product, LoraPair(base.a, base.b)], [1.0, -1.0]) if base.b.any() else product
        self._checks["update_norm"] = math.hypot(self._checks["update_norm"], step.norm())
        merged = MERGED + stem.removeprefix("adapter.")
        if merged + A in self._state:
            product = stacked([lora_pair(self._state, merged), product], [1.0, 1.0])
        full = min(product.a.shape[1], product.b.shape[0])
        if product.a.shape[0] > full:
            product, _ = best_of_rank(product, full)
        self._checks["merged_rank"] = max(self._checks["merged_rank"], float(product.a.shape[0]))
        return restarted_pair(self._state, stem, base) | named_pair(self._state, stem, product, merged)

    def report(self) -> dict[str, Any]:
        """Return `weights`; `checks`: norm of Σ w_k B_k A_k over all pairs, largest rank of a merged pair."""
        return super().report() | {"checks": dict(self._checks)}


class LoraProductSvd(_PairRule):
    """The rank-ρ pair nearest to Σ w_k B_k A_k; exact up to truncation, whose size is reported.

    A direction with a vanishing singular value gets the row of A that was broadcast and a zero column of B,
    as in a fresh adapter: two zero factors would never learn again.
    """

    facts = RuleFacts(
        summary="LoRA: best rank-ρ approximation of the weighted mean of the products.",
        source="Eckart and Young 1936; ML-9",
        needs="individual",
        instead=INSTEAD,
        streams=False,
        sharing=("factors",),
    )

    def begin(self, global_state: State) -> None:
        super().begin(global_state)
        self._errors: dict[str, float] = {}

    def _combine_pairs(self, stem: str, stack: LoraPair) -> State:
        base = self._received[stem]
        rank = base.a.shape[0]
        best, singular = best_of_rank(stack, rank)
        self._errors[stem] = truncation_error(singular, rank)
        alive = int((singular[:rank] > torch.finfo(base.a.dtype).eps * singular[0]).sum())
        a, b = base.a.clone(), torch.zeros_like(base.b)
        a[:alive], b[:, :alive] = best.a[:alive], best.b[:, :alive]
        return named_pair(self._state, stem, LoraPair(a, b), stem)

    def report(self) -> dict[str, Any]:
        """Return `weights`; `truncation`: relative error of each pair; `checks`: the largest of them."""
        checks = {"truncation": max(self._errors.values(), default=0.0)}
        return super().report() | {"truncation": dict(self._errors), "checks": checks}


def lora_pair(state: State, stem: str) -> LoraPair:
    """Return a pair of a state in accumulator precision."""
    a, b = state[stem + A], state[stem + B]
    return LoraPair(a.to(accumulator_dtype(a)), b.to(accumulator_dtype(b)))


def named_pair(state: State, stem: str, pair: LoraPair, new_stem: str) -> State:
    """Return a pair under the names of `new_stem`, in the dtypes that `stem` has in `state`."""
    return {new_stem + end: value.to(state[stem + end].dtype) for end, value in ((A, pair.a), (B, pair.b))}


def restarted_pair(state: State, stem: str, received: LoraPair) -> State:
    """Return the pair from which sites restart once its product is merged: A as received, B = 0."""
    return named_pair(state, stem, LoraPair(received.a, torch.zeros_like(received.b)), stem)
