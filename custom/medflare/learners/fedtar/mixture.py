# SPDX-License-Identifier: Apache-2.0
"""The mixture of Gaussians that patients' profiles are softly assigned to (TAR-11).

Covariances are diagonal. An entry of a profile that is not known (NaN) says nothing: the density is over the
known ones. Everything is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medflare.core.config import Settings
from medflare.core.errors import UpdateError
from medflare.core.hints import MixtureHint
from medflare.core.idle_settings import idle_if
from medflare.core.tensors import SharedSpec, State, check_state

MOST_ITERATIONS = 200
"""Of federated EM, and so the most sums of profiles that a site answers in one job."""
HIGHEST_ENTRY = 1.3
"""Of a profile: an age of 130 years in centuries (`profile.ProfileSettings`)."""
DRAWS = 4096
"""From a mixture, to see what q_p says of an entry."""
LEAST_SPREAD = 1e-5
"""Variance up to which an entry counts as the same for all."""
MIXTURE = "mixture."
WEIGHTS, MEANS, VARIANCES = f"{MIXTURE}weights", f"{MIXTURE}means", f"{MIXTURE}variances"


class MixtureSettings(Settings):
    """The mixture and how it is fitted; defaults are the paper's where it gives any.

    Attributes:
        source: "federated" EM over all sites; "global_fixed", a grid that the server publishes without
            looking at a patient; "per_client", each site its own, whose components then mean something else
            everywhere, so that the projection of q_p must stay at the site (TAR-11).
        components: K of them.
        iterations: of EM, at most.
    """

    source: Literal["federated", "global_fixed", "per_client"] = "federated"
    components: int = Field(default=16, ge=1, le=256)
    regularisation: float = Field(default=1e-6, gt=0, description="added to every variance")
    tolerance: float = Field(
        default=1e-5, gt=0, description="least change of the mean log-likelihood to go on"
    )
    iterations: int = Field(default=50, ge=1, le=MOST_ITERATIONS)
    least_patients: float = Field(
        default=10.0,
        ge=0,
        description="a component of fewer is merged into the nearest at the end: it would point at a patient",
    )

    @property
    def without_effect(self) -> dict[str, str]:
        fitted = "regularisation tolerance iterations least_patients"
        return idle_if((self.source == "global_fixed", "source is 'global_fixed'", fitted))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Component j of K is Normal(means_j, diag(variances_j)) with weight π_j; a merged one has weight 0.

    weights: (K,); means, variances: (K, D), all float64.
    """

    weights: Tensor
    means: Tensor
    variances: Tensor

    @property
    def alive(self) -> int:
        """Components with a weight."""
        return int((self.weights > 0).sum())

    def log_joint(self, values: Tensor) -> Tensor:
        """Return log π_j + log Normal_j(v_p) over the known entries, (P, K).

        Args:
            values: (P, D), NaN where not known.
        """
        known = ~values.isnan()
        filled = torch.where(known, values, torch.zeros_like(values))
        out = self.weights.log().expand(len(values), -1).clone()
        for c in range(values.shape[1]):
            spread = self.variances[:, c]
            distance = (filled[:, c, None] - self.means[:, c]).square() / spread
            density = -0.5 * (distance + torch.log(2 * math.pi * spread))
            out += torch.where(known[:, c, None], density, torch.zeros_like(density))
        return out

    def assign(self, values: Tensor) -> Tensor:
        """Return q_p: (P, K), rows sum to 1; of a patient of whom nothing is known, the weights."""
        return torch.softmax(self.log_joint(values), 1)

    def explained(self) -> Tensor:
        """Return R² of each entry by linear regression on q_p, (D,): how much of it q_p still says.

        Of seeded draws from the mixture, so that no patient is looked at; 0 of an entry that is the same for
        all. Near 0, patients who differ in this entry get the same factors.
        """
        draw = torch.Generator().manual_seed(0)
        component = torch.multinomial(self.weights, DRAWS, replacement=True, generator=draw)
        noise = torch.randn(DRAWS, self.means.shape[1], generator=draw, dtype=torch.float64)
        values = self.means[component] + noise * self.variances[component].sqrt()
        q = self.assign(values)[:, self.weights > 0]
        left = values - q @ torch.linalg.lstsq(q, values, driver="gelsd").solution
        spread = values.var(0)
        share = 1 - left.square().mean(0) / spread
        return torch.where(spread > LEAST_SPREAD, share.clamp(min=0.0), torch.zeros_like(share))

    def state(self) -> State:
        """Return what an unseen site needs to compute q_p; no component is of fewer than `least_patients`."""
        return {WEIGHTS: self.weights.clone(), MEANS: self.means.clone(), VARIANCES: self.variances.clone()}

    @classmethod
    def of(cls, state: State) -> Mixture:
        """Return the mixture of what `state` returned.

        Raises:
            UpdateError: the tensors are no mixture.
        """
        if WEIGHTS not in state or MEANS not in state or state[MEANS].dim() != 2:
            raise UpdateError("the server's mixture: expected the tensors of `Mixture.state`.")
        components, entries = state[MEANS].shape
        check_state(state, mixture_spec(components, entries), "the server's mixture")
        weights, variances = state[WEIGHTS].double(), state[VARIANCES].double()
        if (weights < 0).any() or abs(float(weights.sum()) - 1) > 1e-6 or not (variances > 0).all():
            raise UpdateError("the server's mixture: expected weights that sum to 1 and positive variances.")
        return cls(weights, state[MEANS].double(), variances)

    @classmethod
    def from_hint(cls, hint: MixtureHint) -> Mixture:
        """Return the mixture that `to_hint` was called on; UpdateError where the hint holds none."""
        return cls.of(
            {f"{MIXTURE}{part}": torch.tensor(values, dtype=torch.float64) for part, values in hint}
        )

    def to_hint(self) -> MixtureHint:
        """Return the mixture as JSON numbers, which nothing rounds on the way to a site."""
        return MixtureHint(
            weights=self.weights.tolist(), means=self.means.tolist(), variances=self.variances.tolist()
        )


def mixture_spec(components: int, entries: int) -> SharedSpec:
    """Return names, shapes and dtypes of a mixture of K components over D entries."""
    double = torch.float64
    shape = (components, entries)
    return {WEIGHTS: ((components,), double), MEANS: (shape, double), VARIANCES: (shape, double)}


def spread_out(centre: Tensor, variance: Tensor, components: int, seed: int) -> Tensor:
    """Return (K, D) points of a seeded low-discrepancy set.

    They lie in the range that a uniform distribution of this mean and variance would have, from 0 to
    HIGHEST_ENTRY at most.

    Args:
        centre, variance: (D,).
    """
    from scipy.stats import qmc  # half a second, of every process that knows FedTAR

    points = torch.from_numpy(qmc.Halton(d=len(centre), scramble=True, rng=seed).random(components))
    half = (3 * variance).sqrt()
    low, high = (centre - half).clamp(min=0.0), (centre + half).clamp(max=HIGHEST_ENTRY)
    return low + (high - low).clamp(min=0.0) * points


def fixed_grid(settings: MixtureSettings, entries: int, seed: int) -> Mixture:
    """Return equal components over the unit cube of profiles: nothing of a patient is in it (TAR-11,
    `global_fixed`)."""
    count = settings.components
    half = torch.full((entries,), 0.5, dtype=torch.float64)
    means = spread_out(half, half.square() / 3, count, seed)
    variances = torch.full((count, entries), (0.5 * count ** (-1 / entries)) ** 2, dtype=torch.float64)
    return Mixture(torch.full((count,), 1 / count, dtype=torch.float64), means, variances)
