# SPDX-License-Identifier: Apache-2.0
"""Which pairs of sites compare their graphs together, so that nobody is in two at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from medflare.knowledge.cardinality import message_bytes

MEMORY = 256 * 2**20
"""Most bytes of encrypted elements that a server holds at once."""


class Pair(NamedTuple):
    """Two sites that compare their graphs: the asker learns how many triples they share."""

    asker: str
    holder: str


def pair_bytes(asker: int, holder: int) -> int:
    """Most bytes of a pair's request, set-up and response together, of so many elements each."""
    return 2 * message_bytes(asker) + message_bytes(holder)


def waves(sizes: Mapping[str, int], memory: int = MEMORY) -> list[list[Pair]]:
    """Every pair of sites once, in waves in which each site is in one pair at most.

    The site with the smaller graph asks, as its elements travel twice. Without the limit on memory n sites
    need n − 1 waves, n of an odd number (the circle method of tournaments).

    Args:
        sizes: elements of each site; memory: most bytes of a wave's messages. A pair that has more of them
            makes a wave of its own.
    """
    found = list[list[Pair]]()
    for matching in _matchings(sorted(sizes)):
        wave, held = list[Pair](), 0
        for couple in matching:
            asker, holder = sorted(couple, key=lambda site: (sizes[site], site))
            more = pair_bytes(sizes[asker], sizes[holder])
            if wave and held + more > memory:
                found.append(wave)
                wave, held = [], 0
            wave.append(Pair(asker, holder))
            held += more
        if wave:
            found.append(wave)
    return found


def _matchings(sites: list[str]) -> Iterator[list[tuple[str, str]]]:
    """The rounds of a tournament: one site stays, all others move on by a place."""
    circle: list[str | None] = [*sites, *([None] if len(sites) % 2 else [])]
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(one, other) for one, other in facing if one is not None and other is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]
