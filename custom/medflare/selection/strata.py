# SPDX-License-Identifier: Apache-2.0
"""Knowledge-stratified sampling: one draw from each of S urns that are filled cluster by cluster (DD-15).

A rule of ours after clustered sampling (Fraboni, Vidal, Kameni and Lorenzi, ICML 2021, algorithm 2): instead
of the sites' updates, the distances of their knowledge graphs make the clusters. Sites that know the same lie
in the same urns and stand in for each other, so that a round hardly ever misses a field of knowledge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from medflare.core.errors import ConfigError
from medflare.selection.objective import Matrix
from medflare.selection.sampling import Sample
from medflare.selection.selectors import Selector, SiteStatistics

FULL = 1e-12
"""Room in an urn that rounding leaves and nothing is put into."""


def clusters_of(sites: Sequence[str], distances: Matrix | None, most: int) -> list[list[str]]:
    """Return at most so many clusters of sites by average linkage; one cluster where no distance is known.

    Args:
        distances: (N, N) in the order of `sites`.
    """
    if distances is None or len(sites) < 2 or most < 2:
        return [list(sites)]
    tree = linkage(squareform((distances + distances.T) / 2, checks=False), method="average")
    labels = fcluster(tree, t=most, criterion="maxclust")
    return [
        [s for s, of_site in zip(sites, labels, strict=True) if of_site == label]
        for label in sorted(set(labels))
    ]


def fill_urns(
    shares: Mapping[str, float], clusters: Sequence[Sequence[str]], draws: int
) -> list[dict[str, float]]:
    """Return the odds of each of S urns: site -> probability, which sum to 1 in each.

    A site of share d_i has mass S d_i, so that its odds over all urns sum to S d_i. Clusters are poured by
    decreasing mass, their sites in the given order; a site for which an urn has not room enough goes on in
    the next one.

    Args:
        shares: d_i; they sum to 1.
    """
    masses = {site: draws * share for site, share in shares.items()}
    ordered = sorted(clusters, key=lambda cluster: (-sum(masses[site] for site in cluster), sorted(cluster)))
    urns: list[dict[str, float]] = [{}]
    room = 1.0
    for site in (site for cluster in ordered for site in cluster):
        left = masses[site]
        while left > FULL:
            if room <= FULL and len(urns) < draws:
                urns.append({})
                room = 1.0
            poured = min(left, room) if len(urns) < draws else left
            urns[-1][site] = urns[-1].get(site, 0.0) + poured
            left, room = left - poured, room - poured
    return [{site: mass / sum(urn.values()) for site, mass in urn.items()} for urn in urns]


@dataclass
class StratifiedSelector(Selector):
    """Draws one site from each of S urns; w_i = c_i/S, and E θ⁺ = θ + Σ d_i Δ_i.

    The variance is never above that of S independent draws from q = d. Latency enters by the order in which
    the sites of a cluster are poured, fast ones together, and never by the odds.

    Args:
        draws: S. clusters: at most so many; None for S.
    """

    draws: int = 5
    clusters: int | None = None
    strata: list[list[str]] | None = None

    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        if min_clients > 1:
            raise ConfigError(
                f"rule 'stratified_sampling' cannot promise {min_clients} different sites in a round, which "
                "a sum needs to hide them. Use rule 'ddcs' or 'uniform_selection' under a protection."
            )
        sites, times = sorted(shares), known.latencies.estimates(shares)
        clusters = clusters_of(sites, known.distances(sites), min(self.clusters or self.draws, len(sites)))
        self.strata = [sorted(cluster, key=lambda site: (times[site], site)) for cluster in clusters]
        counts = Counter[str]()
        for urn in fill_urns(shares, self.strata, self.draws):
            names = list(urn)
            counts[names[int(random.choice(len(names), p=list(urn.values())))]] += 1
        weights = {site: count / self.draws for site, count in counts.items()}
        return Sample(counts=dict(counts), weights=weights, probabilities=dict(shares))
