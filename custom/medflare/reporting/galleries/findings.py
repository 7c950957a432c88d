# SPDX-License-Identifier: Apache-2.0
"""Findings missed and invented, condition by condition, and sides swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medflare.evaluation.finding_errors import FindingErrors, FindingRate, finding_errors
from medflare.evaluation.predictions import Prediction
from medflare.reporting.formatting import MISSING
from medflare.reporting.galleries.common import Files, main_adapter, records_by_site
from medflare.reporting.views import Cell, Table

CAPTION = (
    "n: reports that affirm the finding. Missed: of the references' findings, those that the draft lacks. "
    "Invented: of the drafts' findings, those that the reference lacks. In percent, with 95 % Wilson "
    "intervals over studies; a dash where the condition does not occur. The rule labeller reads the findings."
)


def errors_by_site(files: Files) -> dict[str, FindingErrors]:
    """Return site -> errors of the adapter that the site would use."""
    return {site: finding_errors(studies) for site, studies in _studies(files).items()}


def pooled(files: Files) -> FindingErrors | None:
    """Return the errors over all sites together; None without predicted reports."""
    chosen = [item for studies in _studies(files).values() for item in studies]
    return finding_errors(chosen) if chosen else None


def _studies(files: Files) -> dict[str, list[Prediction]]:
    """Return site -> its studies as the adapter reports them that the site would use."""
    return {
        site: [main_adapter(adapters)[1] for adapters in studies.values()]
        for site, studies in records_by_site(files, lambda item: item.study_id).items()
    }


def sentence(files: Files) -> str:
    """Return in one sentence how often the drafts err; "" without predicted reports."""
    errors = pooled(files)
    missed, invented = (None, None) if errors is None else (errors.missed.value, errors.invented.value)
    if errors is None or missed is None or invented is None:
        return ""
    return (
        f"On {errors.unrecognised.of:,} test studies the drafts missed {100 * missed:.0f} % of the findings "
        f"in the references, and {100 * invented:.0f} % of the findings in the drafts are not in their "
        "reference."
    )


def view(files: Files) -> dict[str, Any] | None:
    """Return the data of `findings.html`; None without predicted reports."""
    everything = pooled(files)
    if everything is None:
        return None
    conditions = [
        [name, missed.of, _cell(missed), invented.of, _cell(invented)]
        for name, (missed, invented) in everything.by_condition.items()
    ]
    total = ["all findings", everything.missed.of, _cell(everything.missed)]
    rows = [[*total, everything.invented.of, _cell(everything.invented)], *conditions]
    return {
        "sites": _by_site(errors_by_site(files)),
        "conditions": Table(
            head=["finding", "n, references", "missed", "n, drafts", "invented"], rows=rows, caption=CAPTION
        ),
    }


def _by_site(sites: dict[str, FindingErrors]) -> Table:
    rows: Sequence[Sequence[object]] = [
        [site, *map(_cell, (item.missed, item.invented, item.swapped, item.unrecognised))]
        for site, item in sites.items()
    ]
    head = ["site", "missed", "invented", "left and right swapped", "references not understood"]
    caption = (
        "Swapped: of findings that reference and draft both put on one side, those on opposite sides. A "
        "reference that the labeller does not understand counts in no rate but its own."
    )
    return Table(head=head, rows=rows, caption=caption)


def _cell(rate: FindingRate) -> Cell:
    value, interval = rate.value, rate.interval
    if value is None or interval is None:
        return Cell(text=MISSING)
    low, high = interval
    return Cell(text=f"{100 * value:.0f}", small=f"{100 * low:.0f} to {100 * high:.0f}")
