# SPDX-License-Identifier: Apache-2.0
"""The order in which pairs of sites compare their graphs, each site in one pair at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from medflare.knowledge.private_intersection import message_bytes

MEMORY = 256 * 2**20
"""Most bytes of encrypted elements that a server holds at once."""


class SitePair(NamedTuple):
    """Two sites that compare their graphs: the asker learns how many triples they share."""

    asker: str
    holder: str


def pair_bytes(asker: int, holder: int) -> int:
    """Return the most bytes of a pair's request, set-up and response together, of so many elements each."""
    return 2 * message_bytes(asker) + message_bytes(holder)


def waves(sizes: Mapping[str, int], memory: int = MEMORY) -> list[list[SitePair]]:
    """Return every pair of sites once, in waves in which each site is in one pair at most.

    The site with the smaller graph asks, as its elements travel twice. Without the limit on memory n sites
    need n − 1 waves, n of an odd number (the circle method of tournaments).

    Args:
        sizes: elements of each site; memory: most bytes of a wave's messages. A pair that has more of them
            makes a wave of its own.
    """
    waves_so_far = list[list[SitePair]]()
    for matching in _matchings(sorted(sizes)):
        wave, held = list[SitePair](), 0
        for couple in matching:
            asker, holder = sorted(couple, key=lambda site: (sizes[site], site))
            more = pair_bytes(sizes[asker], sizes[holder])
            if wave and held + more > memory:
                waves_so_far.append(wave)
                wave, held = [], 0
            wave.append(SitePair(asker, holder))
            held += more
        if wave:
            waves_so_far.append(wave)
    return waves_so_far


def _matchings(sites: list[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the rounds of a tournament: one site stays, all others move on by a place."""
    circle: list[str | None] = [*sites, *([None] if len(sites) % 2 else [])]
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(one, other) for one, other in facing if one is not None and other is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]
