# SPDX-License-Identifier: Apache-2.0
"""Source, reference and generated summary side by side, at fixed ranks of their agreement."""

from __future__ import annotations

from typing import Any

from medflare.evaluation.agreement import summary_agreement
from medflare.evaluation.summary_metrics import WrittenSummary
from medflare.reporting.galleries.common import (
    Files,
    SiteCards,
    at_ranks,
    by_site_and_adapter,
    titles_of,
)


def view(files: Files, number: int) -> dict[str, Any] | None:
    """Return the data of `gallery_summaries.html`: up to `number` texts of every site and adapter."""
    groups = by_site_and_adapter(files)
    if not groups or number < 1:
        return None
    sites = []
    for key, title in titles_of(groups).items():
        scored = zip(summary_agreement(groups[key]), groups[key], strict=True)
        ranked = sorted(scored, key=lambda pair: (-pair[0], pair[1].summary_id))
        chosen = at_ranks(ranked, number)
        title = f"{title}: {len(chosen)} of {len(ranked)} texts"
        sites.append(SiteCards(title=title, cards=[_card(item, score) for score, item in chosen]))
    return {"sites": sites}


def _card(item: WrittenSummary, score: float) -> dict[str, Any]:
    remarks = [f"ROUGE-L {100 * score:.0f}"]
    remarks += ["the source did not fit and lost its beginning"] if item.cut else []
    remarks += [] if item.ended else ["the summary did not end within its budget"]
    return {
        "title": item.summary_id + (f", {item.group}" if item.group else ""),
        "texts": [("Source", item.source), ("Reference", item.reference), ("Generated", item.generated)],
        "remark": "; ".join(remarks) + ".",
    }
