# SPDX-License-Identifier: Apache-2.0
"""Section on the differences between sites, as far as they declared them before round 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.data.heterogeneity import divergence_of_shares
from medflare.reporting.formatting import number_or_missing
from medflare.reporting.views import HeatTable, Table, heat_table

HEADINGS = {"words": "words per report", "overlap": "shared vocabulary"}
NOT_SHOWN = {"patients", "studies"}
"""Numbers that the table has elsewhere."""

Shares = Mapping[str, Mapping[str, float]]
"""Site -> condition -> share of its studies that affirm it."""


def view(record: RunRecord, records_name: str) -> dict[str, Any] | None:
    """Return the data of `sites.html`: counts, prevalence of labels, report length and divergence.

    Args:
        record: of the run.
        records_name: the word for what a site counts, "studies" or "notes".

    Returns:
        None where no site has described itself.
    """
    if not record.sites:
        return None
    sites = dict(sorted(record.sites.items()))
    splits = list(dict.fromkeys(name for site in record.sites.values() for name in site.examples))
    declared = {name: _declared(name, site.heterogeneity) for name, site in sites.items()}
    numbers, shares = ({name: pair[part] for name, pair in declared.items()} for part in (0, 1))
    if not any("divergence" in values for values in numbers.values()):
        examples = {name: sum(site.examples.values()) for name, site in sites.items()}
        for name, value in divergence_of_shares(shares, examples).items():
            numbers[name]["divergence"] = value
    further = dict.fromkeys(key for values in numbers.values() for key in values)
    rows = [
        [
            name,
            *(f"{site.examples.get(split, 0):,}" for split in splits),
            *(number_or_missing(numbers[name].get(key)) for key in further),
            ", ".join(f"{count} {why}" for why, count in site.skipped.items()) or "none",
        ]
        for name, site in sites.items()
    ]
    titles = [f"{split} {records_name}" for split in splits] + [HEADINGS.get(k, k) for k in further]
    return {
        "table": Table(head=["site", *titles, "skipped"], rows=rows),
        "divergence": "divergence" in further,
        "prevalence": _prevalence(shares),
    }


def _declared(name: str, heterogeneity: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Return single numbers, and condition -> share of studies that affirm it, of what a site declared.

    A site declares either the result of `data.heterogeneity.heterogeneity` (`rows`, `labels` by site) or its
    part of it (numbers, and `labels` by condition). A site alone cannot know how far it is from the others,
    so divergence and overlap of a single row are left out.
    """
    rows = heterogeneity.get("rows")
    facts = heterogeneity if rows is None else next((r for r in rows if r.get("site") == name), {})
    labels = heterogeneity.get("labels", {})
    shares = labels.get(name, {}) if rows is not None else labels
    alone = {"divergence", "overlap"} if rows is not None and len(rows) < 2 else set()
    hidden = NOT_SHOWN | alone
    numbers = {k: float(v) for k, v in facts.items() if k not in hidden and isinstance(v, int | float)}
    return numbers, {str(k): float(v) for k, v in shares.items() if isinstance(v, int | float)}


def _prevalence(shares: Shares) -> HeatTable | None:
    conditions = dict.fromkeys(c for values in shares.values() for c in values)
    if not conditions:
        return None
    top = max(v for values in shares.values() for v in values.values())
    rows = [(condition, [shares[site].get(condition) for site in shares]) for condition in conditions]
    caption = "Studies whose report affirms the condition, per cent."
    return heat_table(["condition", *shares], rows, caption=caption, top=top)
