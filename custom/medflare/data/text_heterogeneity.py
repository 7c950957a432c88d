# SPDX-License-Identifier: Apache-2.0
"""Differences between sites with questions, summaries or notes: sizes, groups, divergence, words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medflare.data.heterogeneity import heterogeneity_table, jensen_shannon
from medflare.data.records import Note, Question, Summary

COLUMNS = ("site", "records", "train", "groups", "words", "divergence", "vocabulary", "overlap")


def text_heterogeneity(cohorts: Mapping[str, Sequence[Question | Summary]]) -> dict[str, Any]:
    """Return facts as `heterogeneity` has them for studies; `labels` are the shares of groups.

    divergence: Jensen-Shannon divergence (bits, 0 to 1) between the groups of the site's training records and
        those of all sites', the pool weighing sites by their records.
    overlap: share of the site's distinct words that at least one other site uses too.
    """
    trained = {site: [r for r in records if r.split == "train"] for site, records in cohorts.items()}
    groups = sorted({record.group for records in trained.values() for record in records})
    pooled = _shares([record for records in trained.values() for record in records], groups)
    rows, labels = {}, {}
    for site, records in cohorts.items():
        shares = _shares(trained[site], groups)
        rows[site] = {
            "records": len(records),
            "train": len(trained[site]),
            "groups": int((shares > 0).sum()),
            "divergence": float(jensen_shannon(shares, pooled)),
        }
        labels[site] = {
            group or "none": round(float(share), 4) for group, share in zip(groups, shares, strict=True)
        }
    texts = {site: [" ".join(record.texts) for record in records] for site, records in cohorts.items()}
    return heterogeneity_table(COLUMNS, rows, labels, texts)


NOTE_COLUMNS = ("site", "patients", "notes", "words", "entities", "divergence", "vocabulary", "overlap")


def notes_heterogeneity(cohorts: Mapping[str, Sequence[Note]]) -> dict[str, Any]:
    """Return facts as `heterogeneity` has them for studies; `labels` are the shares of entity types.

    divergence: Jensen-Shannon divergence (bits, 0 to 1) between the types of the site's entities and those of
        all sites'.
    """
    found = {
        site: Counter(e.label for note in notes for e in note.entities) for site, notes in cohorts.items()
    }
    pool = sum(found.values(), Counter[str]())
    types = sorted(pool)

    def shares(counts: Counter[str]) -> np.ndarray:
        return np.array([counts[name] / max(counts.total(), 1) for name in types])

    rows, labels = {}, {}
    for site, notes in cohorts.items():
        rows[site] = {
            "patients": len({note.patient_id or note.note_id for note in notes}),
            "notes": len(notes),
            "entities": found[site].total(),
            "divergence": float(jensen_shannon(shares(found[site]), shares(pool))),
        }
        labels[site] = dict(zip(types, map(float, shares(found[site])), strict=True))
    texts = {site: [note.text for note in notes] for site, notes in cohorts.items()}
    return heterogeneity_table(NOTE_COLUMNS, rows, labels, texts)


def _shares(records: Sequence[Question | Summary], groups: Sequence[str]) -> np.ndarray:
    """Return (groups,) share of each; uniform where there is no record."""
    counts = Counter(record.group for record in records)
    if not counts:
        return np.full(len(groups), 1 / max(len(groups), 1))
    return np.array([counts[group] / counts.total() for group in groups])
