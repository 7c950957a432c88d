# SPDX-License-Identifier: Apache-2.0
"""Shared by all partitions: whole owners (patients, questions) assigned to sites, and what is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from medflare.core.config import Settings
from medflare.core.made_folders import MadeFolder
from medflare.data.settings.site import SiteConfig

SiteShares = Callable[[str | int], np.ndarray]
"""Class -> (sites,) shares of it that each site gets, summing to 1."""
SITE_FILE = "site.yaml"
HEAD = "# Partition of"
"""Begins the site.yaml of a partition."""
PARTITION = MadeFolder("partition of a cohort", SITE_FILE, HEAD)
NOT_OF_THE_POOL = frozenset({"name", "cohort", "state"})
"""Settings that each dealt site has for itself."""


def write_site_file(
    path: Path,
    cohorts: Mapping[str, Sequence[Mapping[str, Any]]],
    head: str,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a site.yaml of sites whose records lie in folders of their names beside it, and return its path.

    Args:
        cohorts: site -> its cohorts, as site.yaml writes them, without `root`.
        head: first lines, comments.
        more: further settings of every site.
    """
    sites = {
        name: {
            "cohort": _one_or_all(
                [{"format": cohort["format"], "root": name, **cohort} for cohort in listed]
            ),
            **deepcopy(more or {}),
        }
        for name, listed in cohorts.items()
    }
    text = head + yaml.safe_dump({"sites": sites}, sort_keys=False, default_flow_style=None, width=100)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def settings_of_pool(pool: SiteConfig, folder: Path) -> dict[str, Any]:
    """Return what site.yaml of a pooled cohort says beside its records, for every site of one in `folder`.

    Its model, knowledge, policy and device serve all of them. Paths are relative to `folder`.
    """
    given = [name for name in SiteConfig.model_fields if name in pool.model_fields_set - NOT_OF_THE_POOL]
    more = {name: _seen_from(folder, getattr(pool, name)) for name in given}
    if "name" in more.get("backbone", {}):
        del more["backbone"]["folder"]  # the name stands for the folder, and both are refused
    return more


def _seen_from(folder: Path, value: Any) -> Any:
    """Return a setting as YAML in `folder`: paths relative to it, nested settings as mappings."""
    if isinstance(value, Path):
        return os.path.relpath(value, folder)
    if isinstance(value, Settings):
        given = [name for name in type(value).model_fields if name in value.model_fields_set]
        return {name: _seen_from(folder, getattr(value, name)) for name in given}
    if isinstance(value, Mapping):
        return {name: _seen_from(folder, item) for name, item in value.items()}
    return [_seen_from(folder, item) for item in value] if isinstance(value, tuple) else value


def _one_or_all(cohorts: list[dict[str, Any]]) -> Any:
    return cohorts[0] if len(cohorts) == 1 else cohorts


def assign_to_sites(
    classes: Mapping[str, str | int], shares: SiteShares, sites: int, rng: np.random.Generator
) -> dict[str, int]:
    """Return owner -> number of its site.

    The owners of a class, in random order, are cut at the cumulated shares. A site that would get nobody
    takes one owner from the site that has most, because a site without records cannot take part.

    Args:
        classes: owner -> class, for instance the rarest condition of a patient.
        shares: asked once for each class, in sorted order: it may draw from `rng` too.
    """
    given: dict[str, int] = {}
    for name in sorted(set(classes.values())):
        members = [owner for owner, member_of in classes.items() if member_of == name]
        rng.shuffle(members)
        edges = np.cumsum(shares(name)) * len(members)
        for index, owner in enumerate(members):
            # The middle of the owner's place decides, so that rounding favours no site; the last edge may be
            # a little below len(members) in floating point.
            given[owner] = min(int(np.searchsorted(edges, index + 0.5)), sites - 1)
    for site in range(sites):
        if site not in given.values():
            counts = np.bincount(list(given.values()), minlength=sites)
            donors = [owner for owner, place in given.items() if place == int(counts.argmax())]
            given[donors[0]] = site
    return given


def even_shares(sizes: np.ndarray) -> SiteShares:
    """Return shares that spread every class over the sites (N,) in proportion to their sizes (IID)."""
    return lambda name: sizes / sizes.sum()


def dirichlet_shares(sizes: np.ndarray, alpha: float, rng: np.random.Generator) -> SiteShares:
    """Return shares of each class from Dirichlet(alpha N sizes / Σ sizes): alpha each if sizes are equal."""
    return lambda name: rng.dirichlet(alpha * len(sizes) * sizes / sizes.sum())


def class_shares(classes: Sequence[str | int], sizes: np.ndarray, rng: np.random.Generator) -> SiteShares:
    """Return shares that put every class at one or two sites, at more only if there are too few classes.

    Each site gets a class at least. A class at several sites is parted by their sizes.
    """
    sites, order = len(sizes), [classes[int(i)] for i in rng.permutation(len(classes))]
    copies = Counter({group: int(rng.integers(1, 3)) for group in order})
    while copies.total() < sites:
        fewest = min(order, key=lambda group: copies[group])
        copies[fewest] += 1
    # Sites take turns in one random order over all classes, so that each gets a class before any gets a
    # second.
    turns, turn, holders = rng.permutation(sites), 0, dict[str | int, list[int]]()
    for group in order:
        count = min(copies[group], sites)
        holders[group] = [int(turns[(turn + step) % sites]) for step in range(count)]
        turn += count

    def shares(name: str | int) -> np.ndarray:
        held = np.zeros(sites)
        held[holders[name]] = sizes[holders[name]]
        return held / held.sum()

    return shares
