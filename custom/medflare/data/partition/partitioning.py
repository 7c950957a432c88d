# SPDX-License-Identifier: Apache-2.0
"""Whole owners (patients, questions) dealt to sites class by class: the arithmetic of every partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

SiteShares = Callable[[str | int], np.ndarray]
"""Class -> (sites,) shares of it that each site gets, summing to 1."""


def assign_to_sites(
    classes: Mapping[str, str | int], shares: SiteShares, sites: int, rng: np.random.Generator
) -> dict[str, int]:
    """Owner -> site. Of a class's owners, in random order, the sites get what `shares` says, rounded.

    A site that would get nobody takes one from the site that has most.
    """
    given: dict[str, int] = {}
    for kind in sorted(set(classes.values())):
        members = [owner for owner, own in classes.items() if own == kind]
        rng.shuffle(members)
        edges = np.cumsum(shares(kind)) * len(members)
        for index, owner in enumerate(members):
            given[owner] = min(int(np.searchsorted(edges, index + 0.5)), sites - 1)
    for site in range(sites):
        if site not in given.values():
            counts = np.bincount(list(given.values()), minlength=sites)
            donors = [owner for owner, own in given.items() if own == int(counts.argmax())]
            given[donors[0]] = site
    return given


def even_shares(sizes: np.ndarray) -> SiteShares:
    """Every class is spread over the sites (N,) in proportion to their sizes: independent, identical."""
    return lambda kind: sizes / sizes.sum()


def dirichlet_shares(sizes: np.ndarray, alpha: float, rng: np.random.Generator) -> SiteShares:
    """Of each class shares from Dirichlet(alpha N sizes / Σ sizes): alpha each where sizes are equal."""
    return lambda kind: rng.dirichlet(alpha * len(sizes) * sizes / sizes.sum())


def class_shares(kinds: Sequence[str | int], sizes: np.ndarray, rng: np.random.Generator) -> SiteShares:
    """Every class at one or two sites, at more only where there are more than two sites a class.

    Each site gets a class at least. A class at several sites is parted by their sizes.
    """
    sites, order = len(sizes), [kinds[int(i)] for i in rng.permutation(len(kinds))]
    copies = Counter({kind: int(rng.integers(1, 3)) for kind in order})
    while copies.total() < sites:
        fewest = min(order, key=lambda kind: copies[kind])
        copies[fewest] += 1
    turns, turn, holders = rng.permutation(sites), 0, dict[str | int, list[int]]()
    for kind in order:
        held = min(copies[kind], sites)
        holders[kind] = [int(turns[(turn + step) % sites]) for step in range(held)]
        turn += held

    def shares(kind: str | int) -> np.ndarray:
        found = np.zeros(sites)
        found[holders[kind]] = sizes[holders[kind]]
        return found / found.sum()

    return shares
