# SPDX-License-Identifier: Apache-2.0
"""Shared parts of galleries: ranks at which records are taken, records by site and adapter, gallery data.

Records are taken at fixed ranks of agreement, good and bad ones alike, so that nobody picks the pretty ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

ADAPTERS = ("personalised", "generic", "none")
"""The adapter that a site would use comes first."""
SIGNS = {"agree": "✓", "missed": "− missed:", "invented": "+ invented:"}
"""Verdict on a finding or a change -> what stands before its name."""

Files = Sequence[tuple[Path, list[Any]]]
"""Predictions files with their records."""
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCards:
    """The cards of one site.

    Attributes:
        title: of the site, with how many of its records are shown.
        cards: data of the gallery's template.
    """

    title: str
    cards: Sequence[Mapping[str, Any]]


def records_by_site(
    files: Files, name: Callable[[Any], str]
) -> dict[str, dict[str, dict[str, tuple[Path, Any]]]]:
    """Return site -> name of a record -> adapter -> its file and the record, in order of the sites."""
    sites: dict[str, dict[str, dict[str, tuple[Path, Any]]]] = {}
    for path, items in files:
        for item in items:
            sites.setdefault(item.site, {}).setdefault(name(item), {})[item.adapter] = (path, item)
    return dict(sorted(sites.items()))


def at_ranks(ranked: Sequence[Record], number: int) -> list[Record]:
    """Return `number` items at evenly spaced ranks, the best and the worst left aside.

    All items where there are not more than `number`.
    """
    if len(ranked) <= number:
        return list(ranked)
    places = np.linspace(0.05, 0.95, number) * (len(ranked) - 1) if number > 1 else [0.5 * (len(ranked) - 1)]
    return [ranked[i] for i in dict.fromkeys(round(float(place)) for place in places)]


def main_adapter(adapters: Mapping[str, Record]) -> Record:
    """Return the record of the adapter that a site would use: its personalised one where it has one."""
    return next(adapters[name] for name in ADAPTERS if name in adapters)


def site_cards(
    files: Files,
    number: int,
    rank: Callable[[list[Any]], Sequence[tuple[Any, ...]]],
    card: Callable[..., Mapping[str, Any]],
    name: str,
) -> dict[str, Any] | None:
    """Return the cards of up to `number` records of every site and adapter; None where there are none.

    Args:
        rank: records of one site and adapter -> arguments of `card`, best first.
        card: data of one record.
        name: the word for several records.
    """
    groups: dict[tuple[str, str], list[Any]] = {}
    for _, items in files:
        for item in items:
            groups.setdefault((item.site, item.adapter), []).append(item)
    if not groups or number < 1:
        return None
    several = len({adapter for _, adapter in groups}) > 1
    sites = []
    for (site, adapter), items in sorted(groups.items()):
        shown = at_ranks(rank(items), number)
        title = f"{site}, {adapter} adapter" if several else site
        cards = [card(*chosen) for chosen in shown]
        sites.append(SiteCards(title=f"{title}: {len(shown)} of {len(items)} {name}", cards=cards))
    return {"sites": sites}
