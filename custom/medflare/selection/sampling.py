# SPDX-License-Identifier: Apache-2.0
"""Draws with replacement, weights that make them unbiased (algorithms.md 6.2; DD-4, DD-5, DD-7, DD-8).

θ⁺ = θ + Σ_{distinct i} w_i Δ_i with w_i = c_i d_i / E[c_i], which is c_i d_i/(S q_i) for independent draws:
a site drawn c_i times trains once, and E[θ⁺] = θ + Σ d_i Δ_i whenever q_i > 0 wherever d_i > 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medflare.core.errors import ConfigError
from medflare.selection.distinct import evened, expected_counts

RAREST = 1e-3
"""Below this probability of enough different sites, odds are made more even before draws are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Who trains in a round.

    Attributes:
        counts: c_i of the sites that were drawn; weights: w_i, what multiplies each one's Δ_i. They sum to 1
            in expectation only (DD-4).
        odds: the q_i of all sites that could be drawn, as they were drawn.
        mixed: share of even odds in them, without which enough different sites would hardly come together.
    """

    counts: Mapping[str, int]
    weights: Mapping[str, float]
    odds: Mapping[str, float]
    mixed: float = 0.0

    @property
    def sites(self) -> list[str]:
        """In order of name."""
        return sorted(self.counts)


def draw_sites(
    odds: Mapping[str, float],
    shares: Mapping[str, float],
    draws: int,
    random: np.random.Generator,
    least: int = 1,
) -> Draw:
    """S independent draws from q, made again while fewer than `least` different sites are among them.

    Where that happens in fewer than `RAREST` of all cases, the draws are from the nearest mixture of q and
    even odds by which it does not; weights are of those odds, so that the update stays unbiased.

    Args:
        shares: d_i of the same sites; they sum to 1.

    Raises ConfigError where so many different sites can never, or at even odds hardly ever, be drawn.
    """
    sites = sorted(odds)
    q = np.array([odds[site] for site in sites])
    if draws < least or len(sites) < least:
        raise ConfigError(_too_few(sites, draws, least, 0.0))
    q, mixed = evened(q / q.sum(), draws, least, RAREST)
    expected, probability = expected_counts(q, draws, least)
    if probability < RAREST:
        raise ConfigError(_too_few(sites, draws, least, probability))
    counts = Counter[str]()
    while len(counts) < least:
        counts = Counter(sites[i] for i in random.choice(len(sites), draws, p=q))
    weights = {
        site: counts[site] * shares[site] / float(expected[i]) for i, site in enumerate(sites) if counts[site]
    }
    odds = dict(zip(sites, q.tolist(), strict=True))
    return Draw(counts=dict(counts), weights=weights, odds=odds, mixed=mixed)


def _too_few(sites: list[str], draws: int, least: int, probability: float) -> str:
    found = f"{draws} draws from {len(sites)} sites give {least} different ones"
    how = f"with probability {probability:.2g} only, at even odds" if probability else "never"
    do = f"Set draws to {max(2 * least, draws + least)} or more."
    if len(sites) < least:
        do = f"There must be {least} sites with training examples; only {', '.join(sites)} have any."
    return f"client selection: {found} {how}, and a sum over fewer hides too little. {do}"


def with_age(odds: Mapping[str, float], ages: Mapping[str, int], bonus: float) -> dict[str, float]:
    """(1 − β) q_i + β a_i/Σa: who has waited longer is drawn more often (DD-7).

    β is what the bonus costs: no importance weight grows by more than 1/(1 − β), and the site that has
    waited longest is drawn with probability β/N or more in each draw, whatever its q.

    Args:
        ages: a_i, rounds since site i trained; bonus: β in [0, 1).
    """
    whole = sum(ages.get(site, 0) for site in odds)
    if not whole or not bonus:
        return dict(odds)
    return {site: (1 - bonus) * q + bonus * ages.get(site, 0) / whole for site, q in odds.items()}


def shares_of(examples: Mapping[str, int], sites: list[str]) -> dict[str, float]:
    """d_i = n_i/N over the sites that can be drawn and have data."""
    there = {site: examples.get(site, 0) for site in sorted(sites) if examples.get(site, 0) > 0}
    whole = sum(there.values())
    return {site: n / whole for site, n in there.items()}
