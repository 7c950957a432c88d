# SPDX-License-Identifier: Apache-2.0
"""Radiograph, reference and generated report side by side, with the findings on which they agree.

Of sites with visits, whole patients are shown (visits.py); of others, single studies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.agreement import finding_agreement
from medflare.evaluation.predictions import Prediction
from medflare.reporting.galleries.common import (
    SIGNS,
    Files,
    SiteCards,
    at_ranks,
    main_adapter,
    records_by_site,
)
from medflare.reporting.galleries.pictures import picture_of
from medflare.reporting.views import Chip

NORMAL = {"agree": "✓ no finding", "missed": "− not called normal", "invented": "+ wrongly called normal"}
"""Verdict on the condition "no finding"."""

Adapters = Mapping[str, tuple[Path, Prediction]]
"""Adapter -> (predictions file, one study as that adapter reports it)."""


def view(files: Files, number: int) -> list[SiteCards]:
    """Return up to `number` studies of every site; none where no predictions are at hand."""
    sites = []
    for site, studies in records_by_site(files, lambda item: item.study_id).items() if number else ():
        chosen = pick([main_adapter(adapters)[1] for adapters in studies.values()], number)
        cards = [study_card(studies[item.study_id]) for item in chosen]
        sites.append(SiteCards(title=f"{site}: {len(chosen)} of {len(studies)} studies", cards=cards))
    return sites


def pick(items: Sequence[Prediction], number: int) -> list[Prediction]:
    """Return `number` studies at evenly spaced ranks of agreement, best first.

    Those with an affirmed finding on either side, if there are any.
    """
    telling = [item for item in items if Code.POSITIVE in (*item.gold_codes, *item.predicted_codes)]
    ranked = sorted(telling or items, key=lambda item: (-finding_agreement(item), item.study_id))
    return at_ranks(ranked, number)


def study_card(adapters: Adapters, caption: str = "", changes: Sequence[Chip] = ()) -> dict[str, Any]:
    """Return one study with its reports.

    Args:
        adapters: the study as every adapter reports it.
        caption: below the picture; its ids by default.
        changes: marks of changes since the visit before.
    """
    path, item = main_adapter(adapters)
    others = [other for _, other in adapters.values() if other.adapter != item.adapter]
    return {
        "caption": caption or f"Study {item.study_id}, patient {item.patient_id}",
        "picture": picture_of(item, path.parent),
        "reference": item.reference,
        "title": f"Generated, {item.adapter} adapter" if item.adapter != "none" else "Generated",
        "generated": item.generated,
        "findings": finding_chips(item),
        "changes": changes,
        "others": [
            {
                "summary": f"What the {other.adapter} adapter wrote",
                "generated": other.generated,
                "findings": finding_chips(other),
            }
            for other in others
        ],
    }


def finding_chips(item: Prediction) -> list[Chip]:
    """Return what both reports affirm, what the generated one lacks or adds, and what is unknown."""
    chips: list[tuple[str, Chip]] = []
    for name, gold, predicted in zip(CONDITIONS, item.gold_codes, item.predicted_codes, strict=True):
        if gold == Code.POSITIVE and predicted == Code.POSITIVE:
            chips.append(("agree", _chip("agree", name, "affirmed in both reports")))
        elif gold == Code.POSITIVE:
            why = f"generated report: {Code(predicted).name.lower()}"
            chips.append(("missed", _chip("missed", name, why)))
        elif predicted == Code.POSITIVE:
            why = f"reference report: {Code(gold).name.lower()}"
            chips.append(("invented", _chip("invented", name, why)))
    marks = [chip for verdict in SIGNS for key, chip in chips if key == verdict]
    marks += [
        Chip(style="none", text=f"nothing recognised in the {which} report")
        for which, codes in (("reference", item.gold_codes), ("generated", item.predicted_codes))
        if not any(codes)
    ]
    return marks or [Chip(style="none", text="neither report affirms a finding")]


def _chip(verdict: str, name: str, why: str) -> Chip:
    text = NORMAL[verdict] if name == "no finding" else f"{SIGNS[verdict]} {name}"
    return Chip(style=verdict, text=text, title=why)
