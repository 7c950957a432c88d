# SPDX-License-Identifier: Apache-2.0
"""A patient's visits in their order: what changed from one to the next, and what the report says of it.

Patients are taken at fixed ranks of agreement, as studies are in gallery.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medflare.core.conditions import CONDITIONS
from medflare.evaluation.change_extraction import changes_in
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.temporal_coherence import changes_that_happened
from medflare.evaluation.visit_metrics import change_statistics
from medflare.reporting.gallery import (
    SIGNS,
    Found,
    agreement,
    at_ranks,
    card,
    gallery_section,
    main_adapter,
)
from medflare.reporting.html import Html, details, paragraph, safe

Adapters = dict[str, tuple[Path, Prediction]]
Course = list[Adapters]
"""The visits of one patient in order, each with what every adapter wrote."""


def reports_section(predictions: Found, number: int) -> Html:
    """Up to `number` studies of every site; of sites with visits, patients with all their visits."""
    alone = [(path, [item for item in items if item.visit is None]) for path, items in predictions]
    again = [(path, [item for item in items if item.visit is not None]) for path, items in predictions]
    return Html(gallery_section(alone, number) + visits_section(again, number))


def visits_section(predictions: Found, patients: int) -> Html:
    """Up to `patients` patients of every site, those with several visits where there are any."""
    sites = courses(predictions)
    if not sites or patients < 1:
        return Html("")
    parts = [
        paragraph(
            "Each patient's visits stand in their order. Patients stand at fixed ranks of agreement between "
            "the changes that happened and those that the reports state, from good to bad; none was chosen "
            "by hand. What happened is read from the reference, and from the findings of both visits where "
            "it states nothing."
        )
    ]
    for site, found in sorted(sites.items()):
        chosen = pick(found)
        shown = at_ranks(chosen, patients)
        cards = "".join(_course(found[patient]) for patient in shown)
        name = f"{site}: {len(shown)} of {len(found)} patients"
        parts.append(details(name, cards, kind="site", opened=True))
    return Html("".join(parts))


def courses(predictions: Found) -> dict[str, dict[str, Course]]:
    """Site -> patient -> their visits in order."""
    found: dict[str, dict[str, dict[int, Adapters]]] = {}
    for path, items in predictions:
        for item in items:
            patient = found.setdefault(item.site, {}).setdefault(item.patient_id, {})
            patient.setdefault(item.visit or 0, {})[item.adapter] = (path, item)
    return {
        site: {who: [visits[number] for number in sorted(visits)] for who, visits in patients.items()}
        for site, patients in found.items()
    }


def pick(found: Mapping[str, Course]) -> list[str]:
    """Patients with several visits (all, where nobody has), best agreement first."""
    again = [who for who, visits in found.items() if len(visits) > 1]

    def rank(who: str) -> tuple[float, float, str]:
        items = [main_adapter(adapters)[1] for adapters in found[who]]
        changes = change_statistics(items)
        told = changes["change_f1"].value if changes else 0.0
        return -told, -sum(map(agreement, items)) / len(items), who

    return sorted(again or found, key=rank)


def _course(visits: Course) -> Html:
    who = main_adapter(visits[0])[1].patient_id
    cards = "".join(
        card(adapters, _caption(main_adapter(adapters)[1]), _told(adapters)) for adapters in visits
    )
    return Html(f'<section class="course"><h4>Patient {safe(who)}</h4>{cards}</section>')


def _caption(item: Prediction) -> str:
    passed = f", {item.days:.0f} days after the visit before" if item.days is not None else ""
    return f"Visit {item.visit}{passed}. Study {item.study_id}"


def _told(adapters: Adapters) -> Html:
    return change_chips(main_adapter(adapters)[1])


def change_chips(item: Prediction) -> Html:
    """What changed and is told, what is not told, what is told and did not happen; nothing at a first
    visit."""
    if item.before_codes is None:
        return Html("")
    (happened,) = changes_that_happened([item.reference], [item.before_codes], [item.gold_codes])
    said = changes_in(item.generated)
    groups = {"agree": happened & said, "missed": happened - said, "invented": said - happened}
    lines = [
        f'<li class="{kind}">{SIGNS[kind]} {safe(CONDITIONS[condition])} {change}</li>'
        for kind, changes in groups.items()
        for condition, change in sorted(changes)
    ] or ['<li class="none">no change of a finding happened or is told</li>']
    return Html(f'<ul class="chips" aria-label="Changes since the visit before">{"".join(lines)}</ul>')
