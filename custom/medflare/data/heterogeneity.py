# SPDX-License-Identifier: Apache-2.0
"""How much sites differ: sizes, label shares, divergence from the pool, words, vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.records import Study
from medflare.data.text import tokens
from medflare.data.text_facts import words_per_report

MIN_STUDIES = 20
COLUMNS = ("site", "patients", "studies", "words", "divergence", "vocabulary", "overlap")


def heterogeneity(cohorts: Mapping[str, Sequence[Study]]) -> dict[str, Any]:
    """Facts for a table: `columns`, one row a site in `rows`, and label shares per site in `labels`.

    divergence: Jensen-Shannon divergence (bits, 0 to 1) between the site's and the pool's distribution over
        the four codes, averaged over conditions.
    overlap: share of the site's distinct words that at least one other site uses too.
    The pool weighs sites by their studies.
    """
    pooled = code_shares([study for studies in cohorts.values() for study in studies])
    words = {site: _vocabulary(studies) for site, studies in cohorts.items()}
    rows = []
    labels = {}
    for site, studies in cohorts.items():
        shares = code_shares(studies)
        others = set().union(*(found for other, found in words.items() if other != site))
        rows.append(
            {
                "site": site,
                "patients": len({study.patient_id for study in studies}),
                "studies": len(studies),
                "words": words_per_report([study.report for study in studies]).get("mean", 0.0),
                "divergence": round(float(np.mean(jensen_shannon(shares, pooled))), 4),
                "vocabulary": len(words[site]),
                "overlap": round(len(words[site] & others) / max(len(words[site]), 1), 3),
            }
        )
        labels[site] = {
            name: round(float(shares[index, Code.POSITIVE]), 4) for index, name in enumerate(CONDITIONS)
        }
    mean = round(float(np.mean([row["divergence"] for row in rows])), 4) if rows else 0.0
    return {"columns": list(COLUMNS), "rows": rows, "labels": labels, "mean_divergence": mean}


def site_facts(studies: Sequence[Study]) -> dict[str, Any]:
    """Return what a site reports of itself before round 1: shares and means over all its studies.

    Below MIN_STUDIES studies shares would describe single patients, so only the count remains.
    """
    if len(studies) < MIN_STUDIES:
        return {"studies": len(studies)}
    shares = code_shares(studies)
    return {
        "studies": len(studies),
        "patients": len({study.patient_id for study in studies}),
        "words": words_per_report([study.report for study in studies]).get("mean", 0.0),
        "vocabulary": len(_vocabulary(studies)),
        "labels": {
            name: round(float(shares[index, Code.POSITIVE]), 4) for index, name in enumerate(CONDITIONS)
        },
    }


def code_shares(studies: Sequence[Study]) -> np.ndarray:
    """(14, 4): share of each code for each condition; uniform where nothing is labelled."""
    coded = [study.codes for study in studies if study.codes is not None]
    if not coded:
        return np.full((len(CONDITIONS), len(Code)), 1 / len(Code))
    return np.asarray(np.eye(len(Code))[np.array(coded)].mean(axis=0))


def divergence_of_shares(
    shares: Mapping[str, Mapping[str, float]], examples: Mapping[str, int]
) -> dict[str, float]:
    """Return how far each site's findings are from the pool's, where sites declared only shares.

    Args:
        shares: site -> condition -> share of its studies that affirm the condition; sites without any are
            left out.
        examples: site -> its weight in the pool.

    Returns:
        Site -> Jensen-Shannon divergence in bits, averaged over the conditions that all sites declared;
        empty for fewer than two sites.
    """
    sites = [site for site in shares if shares[site]]
    if len(sites) < 2:
        return {}
    conditions = sorted(set.intersection(*(set(shares[site]) for site in sites)))
    affirmed = np.array([[shares[site][c] for c in conditions] for site in sites])
    weights = np.array([examples.get(site, 0) or 1 for site in sites], dtype=float)
    pool = (weights / weights.sum()) @ affirmed
    ours, theirs = (np.stack([part, 1 - part], axis=-1) for part in (affirmed, pool))
    values = jensen_shannon(ours, theirs[None]).mean(axis=-1)
    return {site: float(value) for site, value in zip(sites, values, strict=True)}


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Divergence in bits along the last axis; 0 for equal, 1 for disjoint distributions."""
    middle = (p + q) / 2

    def part(a: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(a > 0, a * np.log2(a / middle), 0.0)
        return np.asarray(terms.sum(axis=-1))

    return np.maximum(0.0, (part(p) + part(q)) / 2)


def _vocabulary(studies: Sequence[Study]) -> set[str]:
    return {token for study in studies for token in tokens(study.report) if token[0].isalpha()}
