# SPDX-License-Identifier: Apache-2.0
"""Differences between clients, counted while their studies go by: labels, lengths of reports, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from medflare.benchmark.rows import BenchmarkRow
from medflare.core.conditions import CONDITIONS, Code
from medflare.data.heterogeneity import jensen_shannon, vocabulary

LONGEST = 200
"""Words from which reports share one cell of the histogram."""


class ClientStatistics:
    """Counts of one client.

    Attributes:
        codes: (14, 4) studies by condition and code.
        lengths: (LONGEST + 1,) studies by words of the findings.
        words: distinct words.
    """

    def __init__(self) -> None:
        self.codes = np.zeros((len(CONDITIONS), len(Code)), dtype=np.int64)
        self.lengths = np.zeros(LONGEST + 1, dtype=np.int64)
        self.words: set[str] = set()
        self.patients: set[str] = set()
        self.studies = self.images = 0

    def add(self, row: BenchmarkRow) -> None:
        """Count one study."""
        self.codes[np.arange(len(CONDITIONS)), list(row.codes)] += 1
        self.lengths[min(len(row.findings.split()), LONGEST)] += 1
        self.words |= vocabulary([row.findings])
        self.patients.add(row.patient_id)
        self.studies += 1
        self.images += len(row.images)

    @property
    def shares(self) -> np.ndarray:
        """(14, 4): share of each code for each condition."""
        return np.asarray(self.codes / max(self.studies, 1))

    def quantile(self, share: float) -> int:
        """Return the words that this share of the reports does not exceed."""
        return int(np.searchsorted(self.lengths.cumsum(), share * self.studies))


def summary(sites: Mapping[str, ClientStatistics]) -> dict[str, Any]:
    """Return, for benchmark.json, what every client holds and how far it is from the pool.

    divergence: Jensen-Shannon in bits between the codes of client and pool, averaged over conditions;
    overlap: share of a client's distinct words that another client uses too.
    """
    total = sum((one.codes for one in sites.values()), np.zeros((len(CONDITIONS), len(Code))))
    pool = total / max(sum(one.studies for one in sites.values()), 1)
    table: dict[str, Any] = {}
    for name, one in sites.items():
        others = set().union(*(other.words for key, other in sites.items() if key != name))
        positive = one.shares[:, int(Code.POSITIVE)]
        table[name] = {
            "patients": len(one.patients),
            "studies": one.studies,
            "images": one.images,
            "divergence": round(float(jensen_shannon(one.shares, pool).mean()), 4),
            "words": {str(q): one.quantile(q / 100) for q in (5, 25, 50, 75, 95)},
            "vocabulary": len(one.words),
            "overlap": round(len(one.words & others) / max(len(one.words), 1), 4),
            "labels": {c: round(float(v), 4) for c, v in zip(CONDITIONS, positive, strict=True)},
        }
    return table
