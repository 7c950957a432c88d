# SPDX-License-Identifier: Apache-2.0
"""How much sites with questions or summaries differ: sizes, groups, divergence from the pool, words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medflare.data.heterogeneity import jensen_shannon
from medflare.data.records import Question, Summary
from medflare.data.text import tokens
from medflare.data.text_facts import words_per_report

COLUMNS = ("site", "records", "train", "groups", "words", "divergence", "vocabulary", "overlap")


def text_heterogeneity(cohorts: Mapping[str, Sequence[Question | Summary]]) -> dict[str, Any]:
    """Facts as `heterogeneity` has them for studies; `labels` are the shares of groups.

    divergence: Jensen-Shannon divergence (bits, 0 to 1) between the groups of the site's training records and
        those of all sites', the pool weighing sites by their records.
    overlap: share of the site's distinct words that at least one other site uses too.
    """
    trained = {site: [r for r in records if r.split == "train"] for site, records in cohorts.items()}
    groups = sorted({record.group for records in trained.values() for record in records})
    pooled = _shares([record for records in trained.values() for record in records], groups)
    words = {
        site: {t for r in records for t in tokens(_text(r)) if t[0].isalpha()}
        for site, records in cohorts.items()
    }
    rows, labels = [], {}
    for site, records in cohorts.items():
        shares = _shares(trained[site], groups)
        others = set().union(*(found for other, found in words.items() if other != site))
        rows.append(
            {
                "site": site,
                "records": len(records),
                "train": len(trained[site]),
                "groups": int((shares > 0).sum()),
                "words": words_per_report([_text(record) for record in records]).get("mean", 0.0),
                "divergence": round(float(jensen_shannon(shares, pooled)), 4),
                "vocabulary": len(words[site]),
                "overlap": round(len(words[site] & others) / max(len(words[site]), 1), 3),
            }
        )
        labels[site] = {
            group or "none": round(float(share), 4) for group, share in zip(groups, shares, strict=True)
        }
    mean = round(float(np.mean([row["divergence"] for row in rows])), 4) if rows else 0.0
    return {"columns": list(COLUMNS), "rows": rows, "labels": labels, "mean_divergence": mean}


def _shares(records: Sequence[Question | Summary], groups: Sequence[str]) -> np.ndarray:
    """(groups,) share of each; uniform where there is no record."""
    counts = Counter(record.group for record in records)
    if not counts:
        return np.full(len(groups), 1 / max(len(groups), 1))
    return np.array([counts[group] / counts.total() for group in groups])


def _text(record: Question | Summary) -> str:
    if isinstance(record, Question):
        return " ".join([record.text, *(text for _, text in record.options)])
    return f"{record.source} {record.target}"
