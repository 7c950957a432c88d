# SPDX-License-Identifier: Apache-2.0
"""A patient's visits in their order: what changed from one to the next, and what the report says of it.

Patients are taken at fixed ranks of agreement, as studies are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS
from medflare.evaluation.agreement import change_agreement, changes_of, finding_agreement
from medflare.evaluation.predictions import Prediction
from medflare.reporting.galleries import studies
from medflare.reporting.galleries.common import SIGNS, Files, SiteCards, at_ranks, main_adapter
from medflare.reporting.views import Chip

PredictedVisits = list[dict[str, tuple[Path, Prediction]]]
"""The visits of one patient in order, each with what every adapter wrote."""


def reports_view(files: Files, number: int) -> dict[str, list[SiteCards]] | None:
    """Return the data of `gallery_reports.html`; None where there is nothing to show.

    Args:
        files: predictions with and without visits.
        number: of studies of every site, or of patients where a site has visits.
    """
    alone, repeated = (
        [(path, [item for item in items if (item.visit is None) == single]) for path, items in files]
        for single in (True, False)
    )
    view = {"studies": studies.view(alone, number), "patients": patients_view(repeated, number)}
    return view if any(view.values()) else None


def patients_view(files: Files, number: int) -> list[SiteCards]:
    """Return up to `number` patients of every site, those with several visits where there are any."""
    sites = []
    for site, patients in sorted(courses(files).items()) if number else ():
        shown = at_ranks(pick(patients), number)
        cards = [_patient_card(patients[patient]) for patient in shown]
        sites.append(SiteCards(title=f"{site}: {len(shown)} of {len(patients)} patients", cards=cards))
    return sites


def courses(files: Files) -> dict[str, dict[str, PredictedVisits]]:
    """Return site -> patient -> their visits in order."""
    sites: dict[str, dict[str, dict[int, dict[str, tuple[Path, Prediction]]]]] = {}
    for path, items in files:
        for item in items:
            patient = sites.setdefault(item.site, {}).setdefault(item.patient_id, {})
            patient.setdefault(item.visit or 0, {})[item.adapter] = (path, item)
    return {
        site: {who: [visits[number] for number in sorted(visits)] for who, visits in patients.items()}
        for site, patients in sites.items()
    }


def pick(patients: Mapping[str, PredictedVisits]) -> list[str]:
    """Return the patients with several visits (all, where nobody has), best agreement first.

    By the changes that the reports state, then by the mean agreement of the findings.
    """
    repeated = [who for who, visits in patients.items() if len(visits) > 1]

    def rank(who: str) -> tuple[float, float, str]:
        items = [main_adapter(adapters)[1] for adapters in patients[who]]
        return -change_agreement(items), -sum(map(finding_agreement, items)) / len(items), who

    return sorted(repeated or patients, key=rank)


def _patient_card(visits: PredictedVisits) -> dict[str, Any]:
    cards = []
    for adapters in visits:
        item = main_adapter(adapters)[1]
        passed = f", {item.days:.0f} days after the visit before" if item.days is not None else ""
        caption = f"Visit {item.visit}{passed}. Study {item.study_id}"
        cards.append(studies.study_card(adapters, caption, change_chips(item)))
    return {"patient": main_adapter(visits[0])[1].patient_id, "visits": cards}


def change_chips(item: Prediction) -> list[Chip]:
    """Return the changes that are stated, those that are not, and those that did not happen.

    Empty at a patient's first visit.
    """
    changes = changes_of(item)
    if changes is None:
        return []
    happened, stated = changes
    groups = {"agree": happened & stated, "missed": happened - stated, "invented": stated - happened}
    return [
        Chip(style=verdict, text=f"{SIGNS[verdict]} {CONDITIONS[condition]} {change}")
        for verdict, group in groups.items()
        for condition, change in sorted(group)
    ] or [Chip(style="none", text="no change of a finding happened or is told")]
