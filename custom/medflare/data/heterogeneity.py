# SPDX-License-Identifier: Apache-2.0
"""Differences between sites: sizes, label shares, divergence from the pool, words, vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.records import Study
from medflare.data.text import tokens
from medflare.data.text_facts import words_per_report

MIN_STUDIES = 20
COLUMNS = ("site", "patients", "studies", "words", "divergence", "vocabulary", "overlap")


def heterogeneity(cohorts: Mapping[str, Sequence[Study]]) -> dict[str, Any]:
    """Return facts for a table: `columns`, one row a site in `rows`, and label shares per site in `labels`.

    divergence: Jensen-Shannon divergence (bits, 0 to 1) between the site's and the pool's distribution over
        the four codes, averaged over conditions.
    overlap: share of the site's distinct words that at least one other site uses too.
    The pool weighs sites by their studies.
    """
    pooled = code_shares([study for studies in cohorts.values() for study in studies])
    rows, labels = {}, {}
    for site, studies in cohorts.items():
        shares = code_shares(studies)
        rows[site] = {
            "patients": len({study.patient_id for study in studies}),
            "studies": len(studies),
            "divergence": float(np.mean(jensen_shannon(shares, pooled))),
        }
        labels[site] = _positive_shares(shares)
    texts = {site: [study.report for study in studies] for site, studies in cohorts.items()}
    return heterogeneity_table(COLUMNS, rows, labels, texts)


def heterogeneity_table(
    columns: Sequence[str],
    rows: Mapping[str, Mapping[str, float]],
    labels: Mapping[str, Mapping[str, float]],
    texts: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the table of `heterogeneity`.

    Args:
        rows: site -> its numbers, `divergence` among them, without those of its words.
        labels: site -> shares of its labels.
        texts: site -> what its words are counted in.
    """
    words = {site: vocabulary(listed) for site, listed in texts.items()}
    table = []
    for site, row in rows.items():
        others = set().union(*(used for other, used in words.items() if other != site))
        measured = {
            "site": site,
            **row,
            "words": words_per_report(texts[site]).get("mean", 0.0),
            "divergence": round(row["divergence"], 4),
            "vocabulary": len(words[site]),
            "overlap": round(len(words[site] & others) / max(len(words[site]), 1), 3),
        }
        table.append({name: measured[name] for name in columns})
    mean = round(float(np.mean([row["divergence"] for row in table])), 4) if table else 0.0
    return {"columns": list(columns), "rows": table, "labels": dict(labels), "mean_divergence": mean}


def site_facts(studies: Sequence[Study]) -> dict[str, Any]:
    """Return what a site reports of itself before round 1: shares and means over all its studies.

    Below MIN_STUDIES studies shares would describe single patients, so only the count remains.
    """
    if len(studies) < MIN_STUDIES:
        return {"studies": len(studies)}
    reports = [study.report for study in studies]
    return {
        "studies": len(studies),
        "patients": len({study.patient_id for study in studies}),
        "words": words_per_report(reports).get("mean", 0.0),
        "vocabulary": len(vocabulary(reports)),
        "labels": _positive_shares(code_shares(studies)),
    }


def code_shares(studies: Sequence[Study]) -> np.ndarray:
    """Return (14, 4): share of each code for each condition; uniform where nothing is labelled."""
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
    """Return the divergence in bits along the last axis; 0 for equal, 1 for disjoint distributions."""
    middle = (p + q) / 2

    def part(a: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(a > 0, a * np.log2(a / middle), 0.0)
        return np.asarray(terms.sum(axis=-1))

    return np.maximum(0.0, (part(p) + part(q)) / 2)


def vocabulary(texts: Iterable[str]) -> set[str]:
    """Return the distinct words of texts, without numbers and punctuation."""
    return {token for text in texts for token in tokens(text) if token[0].isalpha()}


def _positive_shares(shares: np.ndarray) -> dict[str, float]:
    """Return condition -> share of POSITIVE, from `code_shares` (14, 4)."""
    return {name: round(float(shares[index, Code.POSITIVE]), 4) for index, name in enumerate(CONDITIONS)}
