# SPDX-License-Identifier: Apache-2.0
"""Splits by patient: a patient is in one split only, whatever the source says."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from medflare.data.records import SPLITS
from medflare.data.settings.cohort import SplitConfig

_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Name of a split in a source -> our name."""


def split_name(value: str) -> str | None:
    """Return our word for a source's split ("validate" -> "val"), None where it is unknown."""
    return _NAMES.get(value.strip().lower())


def stable_hash(text: str, seed: int) -> float:
    """Return a number in [0, 1) from `text` and `seed`, the same on every machine and in every release."""
    return int(hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()[:13], 16) / 16**13


def assign_splits(patients: Iterable[str], shares: SplitConfig) -> dict[str, str]:
    """Return patient -> split by stable hash, so that a patient who joins later moves nobody else.

    In a small cohort a split with a share may come out empty; then the nearest patient by hash of the
    fullest split moves there (only if that split keeps one). In such a cohort a newcomer may undo the move,
    so give it a `split` column once training has begun.
    """
    wanted = {"train": shares.train, "val": shares.val, "test": shares.test}
    place = {patient: stable_hash(patient, shares.seed) for patient in sorted(set(patients))}
    given = {patient: _region(value, wanted) for patient, value in place.items()}
    middle = {"train": wanted["train"] / 2, "val": wanted["train"] + wanted["val"] / 2, "test": 1.0}
    for split in SPLITS:
        if wanted[split] <= 0 or split in given.values():
            continue
        counts = Counter(given.values())
        fullest = max(SPLITS, key=lambda name: counts[name])
        if counts[fullest] > 1:
            candidates = [patient for patient, now in given.items() if now == fullest]
            nearest = min(candidates, key=lambda patient: (abs(place[patient] - middle[split]), patient))
            given[nearest] = split
    return given


def _region(value: float, shares: Mapping[str, float]) -> str:
    edge = 0.0
    for split in SPLITS:
        edge += shares[split]
        if value < edge:
            return split
    return next(split for split in reversed(SPLITS) if shares[split] > 0)


def one_split_per_patient(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, str], int]:
    """Return patient -> the most common split of its records, and how many patients had several.

    A tie goes to test, then val: a patient who was tested on is never trained on by accident.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for patient, split in pairs:
        counts[patient][split] += 1
    order = {split: rank for rank, split in enumerate(SPLITS)}
    chosen = {
        patient: max(splits, key=lambda split: (splits[split], order[split]))
        for patient, splits in counts.items()
    }
    return chosen, sum(len(splits) > 1 for splits in counts.values())
