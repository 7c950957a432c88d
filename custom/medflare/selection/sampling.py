# SPDX-License-Identifier: Apache-2.0
"""Sampling with replacement, and weights that make it unbiased (DD-4, DD-5, DD-7, DD-8).

θ⁺ = θ + Σ_{distinct i} w_i Δ_i with w_i = c_i d_i / E[c_i], which is c_i d_i/(S q_i) for independent draws:
a site drawn c_i times trains once, and E[θ⁺] = θ + Σ d_i Δ_i whenever q_i > 0 wherever d_i > 0.

Such weights undo what the odds say of a site: one that is drawn half as often counts twice. With
w_i = c_i / S that is not so, and E[θ⁺] = θ + Σ q_i Δ_i for independent draws (DD-17).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medflare.core.errors import ConfigError
from medflare.selection.inclusion_probability import expected_counts, mix_with_uniform

MIN_PROBABILITY = 1e-3
"""Below this probability of enough different sites, q is mixed with the uniform distribution first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Sample of the clients that train in a round.

    Attributes:
        counts: c_i of the sites that were sampled.
        weights: w_i, what multiplies each one's Δ_i. Unbiased ones sum to 1 in expectation only (DD-4).
        probabilities: q_i of every site that could be sampled, as they were used.
        mixed: share of uniform probabilities in them, without which enough different sites would hardly have
            come together.
    """

    counts: Mapping[str, int]
    weights: Mapping[str, float]
    probabilities: Mapping[str, float]
    mixed: float = 0.0

    @property
    def sites(self) -> list[str]:
        """The sampled sites in order of name."""
        return sorted(self.counts)


def sample_sites(
    probabilities: Mapping[str, float],
    shares: Mapping[str, float],
    draws: int,
    random: np.random.Generator,
    least: int = 1,
    unbiased: bool = True,
) -> Sample:
    """Return S independent draws from q that hold `least` different sites or more.

    Draws with fewer are repeated, so that c_i is conditioned on the number of different sites, and weights
    divide by E[c_i] under that condition (`inclusion_probability`). Where so many different sites come
    together in fewer than `MIN_PROBABILITY` of all draws, q is first mixed with the uniform distribution just
    as far as is needed; weights are of the mixture, so that the update stays unbiased.

    Args:
        probabilities: q_i of the sites that can be sampled; normalised here.
        shares: d_i of the same sites; they sum to 1.
        draws: S.
        unbiased: weights c_i d_i / E[c_i]; otherwise c_i / S.

    Raises:
        ConfigError: so many different sites can never, or at uniform probabilities hardly ever, be drawn.
    """
    sites = sorted(probabilities)
    q = np.array([probabilities[site] for site in sites])
    if draws < least or len(sites) < least:
        raise ConfigError(_too_few(sites, draws, least, 0.0))
    q, mixed = mix_with_uniform(q / q.sum(), draws, least, MIN_PROBABILITY)
    expected, probability = expected_counts(q, draws, least)
    if probability < MIN_PROBABILITY:
        raise ConfigError(_too_few(sites, draws, least, probability))
    counts = Counter[str]()
    while len(counts) < least:
        counts = Counter(sites[i] for i in random.choice(len(sites), draws, p=q))
    of_a_draw = {
        site: shares[site] / float(expected[i]) if unbiased else 1 / draws
        for i, site in enumerate(sites)
        if counts[site]
    }
    weights = {site: counts[site] * weight for site, weight in of_a_draw.items()}
    used = dict(zip(sites, q.tolist(), strict=True))
    return Sample(counts=dict(counts), weights=weights, probabilities=used, mixed=mixed)


def _too_few(sites: list[str], draws: int, least: int, probability: float) -> str:
    result = f"{draws} draws from {len(sites)} sites give {least} different ones"
    how = f"with probability {probability:.2g} only, at even odds" if probability else "never"
    do = f"Set draws to {max(2 * least, draws + least)} or more."
    if len(sites) < least:
        do = f"There must be {least} sites with training examples; only {', '.join(sites)} have any."
    return f"client selection: {result} {how}, and a sum over fewer hides too little. {do}"


def with_staleness(
    probabilities: Mapping[str, float], staleness: Mapping[str, int], bonus: float
) -> dict[str, float]:
    """Return (1 − β) q_i + β a_i/Σa: a site that has waited longer is sampled more often (DD-7).

    β is what the bonus costs: no importance weight grows by more than 1/(1 − β), and the site that has
    waited longest is drawn with probability β/N or more in each draw, whatever its q.

    Args:
        staleness: a_i, rounds since site i trained.
        bonus: β in [0, 1).
    """
    total = sum(staleness.get(site, 0) for site in probabilities)
    if not total or not bonus:
        return dict(probabilities)
    return {
        site: (1 - bonus) * q + bonus * staleness.get(site, 0) / total for site, q in probabilities.items()
    }


def data_shares(examples: Mapping[str, int], sites: list[str]) -> dict[str, float]:
    """Return d_i = n_i/N over the sites that can be sampled and have data."""
    counts = {site: examples.get(site, 0) for site in sorted(sites) if examples.get(site, 0) > 0}
    total = sum(counts.values())
    return {site: n / total for site, n in counts.items()}
