# SPDX-License-Identifier: Apache-2.0
"""Floors under the sums of patients' profiles: no number that leaves a site rests on too few patients.

The server picks the mixture whose sums it asks for. A component that is narrow and lies on one patient would
otherwise send that patient's profile as its mean, and an entry of a profile that is known of one patient
would be that patient's. What a sum rests on is counted by the effective number of patients, (Σ q)² / Σ q²: P
for equal shares of P patients, 1 where one patient has all, whatever the size of the shares.

What remains: sums of many mixtures that differ a little are many equations in the patients' profiles, and a
server that adapts them can come closer to one patient than any single sum does. The exchanges of a job are
bounded (`MOST_ITERATIONS`), masking leaves sums over all sites only, and the mixtures `global_fixed` and
`per_client` need no sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medflare.learners.fedtar.mixture import Mixture

FEWEST = 5
"""Patients on whom a sum rests at least; a site's `min_examples` may ask for more."""
LEAST_VARIANCE = 1e-6
"""Of a component, at a site: the regularisation that EM adds by default, a month of age."""


def without_rare_entries(values: Tensor, fewest: int) -> Tensor:
    """Return profiles in which entries known of fewer than `fewest` patients are unknown; none for fewer."""
    if len(values) < fewest:
        return values[:0]
    rare = (~values.isnan()).sum(0) < fewest
    return values.masked_fill(rare, math.nan)


def effective_number(q: Tensor, counted: Tensor) -> Tensor:
    """Return (Σ_p q_pj)² / Σ_p q²_pj over the patients who count: (K, D); 0 where nobody does.

    Args:
        q: (P, K); counted: (P, D), 1 where a patient counts and 0 elsewhere.
    """
    squares = q.square().T @ counted
    return torch.where(
        squares > 0, (q.T @ counted).square() / squares.clamp(min=1e-300), torch.zeros_like(squares)
    )


def merge_concentrated(mixture: Mixture, q: Tensor, fewest: int) -> Tensor:
    """Return (P, K) q in which every component that is left rests on `fewest` patients or more.

    The most concentrated component joins the nearest one by their means, in units of both spreads together,
    until none is below; the last one is kept.
    """
    if fewest <= 1 or not len(q):
        return q
    q, everybody = q.clone(), torch.ones(len(q), 1, dtype=q.dtype)
    left = [j for j in range(q.shape[1]) if float(q[:, j].sum()) > 0]
    while len(left) > 1:
        numbers = effective_number(q[:, left], everybody)[:, 0]
        place = int(numbers.argmin())
        if numbers[place] >= fewest:
            break
        small = left.pop(place)
        apart = (mixture.means[left] - mixture.means[small]).square()
        nearest = left[int((apart / (mixture.variances[left] + mixture.variances[small])).sum(1).argmin())]
        q[:, nearest] += q[:, small]
        q[:, small] = 0
    return q
