# SPDX-License-Identifier: Apache-2.0
"""Comparability of sketches of knowledge graphs, and the Jaccard similarity they estimate (DD-3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from medflare.core.errors import UpdateError
from medflare.core.sketch import Sketch

SketchGroup = tuple[bytes, int, str]
"""Fingerprint of the key, k and kind: what must be equal for sketches to be compared."""


def _groups(sketches: Mapping[str, Sketch]) -> tuple[dict[SketchGroup, list[str]], SketchGroup]:
    """Return group -> sites, and the largest group; of equal ones that of the first site by name."""
    groups: dict[SketchGroup, list[str]] = {}
    for site, sketch in sorted(sketches.items()):
        groups.setdefault((sketch.fingerprint, len(sketch.values), sketch.kind), []).append(site)
    return groups, max(groups, key=lambda group: len(groups[group]))


def _describe(group: SketchGroup) -> str:
    return f"k = {group[1]}, {group[2]}, key {group[0].hex()[:8]}"


def comparable(sketches: Mapping[str, Sketch]) -> tuple[dict[str, Sketch], dict[str, str]]:
    """Return the sketches with the key, k and kind of most sites, and a reason for each of the others."""
    if not sketches:
        return {}, {}
    groups, largest = _groups(sketches)
    kept = {site: sketches[site] for site in groups.pop(largest)}
    first = min(kept)
    return kept, {
        site: (
            f"its sketch ({_describe(group)}) cannot be compared with that of '{first}' "
            f"({_describe(largest)})"
        )
        for group, sites in groups.items()
        for site in sites
    }


def check_comparable(sketches: Mapping[str, Sketch]) -> None:
    """Raise UpdateError that names the sites whose key, k or kind is not that of the majority."""
    if not sketches:
        return
    groups, largest = _groups(sketches)
    others = [
        f"'{s}' ({_describe(group)})" for group, sites in groups.items() if group != largest for s in sites
    ]
    if others:
        raise UpdateError(
            f"sketches of {', '.join(others)} cannot be compared with the others' ({_describe(largest)}). "
            "Give every site the same sketch key, context and k, and sketch again."
        )


def sites_outside_majority(digests: Mapping[str, str]) -> list[str]:
    """Return the sites whose vocabulary's digest is not that of more than half; all, if no digest is."""
    counts = Counter(digests.values())
    return sorted(site for site, digest in digests.items() if 2 * counts[digest] <= len(digests))


def estimated_jaccard(one: Sketch, other: Sketch) -> float:
    """Return Ĵ, the share of equal positions; 0 where a graph is empty (DD-3)."""
    check_comparable({"one": one, "other": other})
    return 0.0 if one.empty or other.empty else float(np.mean(one.values == other.values))


def standard_error(k: int, similarity: float = 0.5) -> float:
    """Return √(J(1 − J)/k): at most 1/(2√k), 0.0156 for k = 1024."""
    return math.sqrt(similarity * (1 - similarity) / k)


def jaccard_interval(estimate: float, k: int, level: float = 0.95) -> tuple[float, float]:
    """Return the interval that holds J with probability `level` or more (Clopper and Pearson 1934)."""
    equal, tail = round(estimate * k), (1 - level) / 2
    from scipy.special import betaincinv  # late: every server and launcher imports this module

    low = float(betaincinv(equal, k - equal + 1, tail)) if equal else 0.0
    high = float(betaincinv(equal + 1, k - equal, 1 - tail)) if equal < k else 1.0
    return low, high


def error_bound(k: int, level: float = 0.95) -> float:
    """Return a bound that |Ĵ − J| exceeds with probability at most 1 − `level` (Hoeffding 1963)."""
    return math.sqrt(math.log(2 / (1 - level)) / (2 * k))
