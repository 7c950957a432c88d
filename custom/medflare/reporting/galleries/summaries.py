# SPDX-License-Identifier: Apache-2.0
"""Source, reference and generated summary side by side, at fixed ranks of their agreement."""

from __future__ import annotations

from typing import Any

from medflare.evaluation.agreement import summary_agreement
from medflare.evaluation.summary_metrics import WrittenSummary
from medflare.reporting.galleries.common import Files, site_cards


def view(files: Files, number: int) -> dict[str, Any] | None:
    """Return the data of `gallery_summaries.html`: up to `number` texts of every site and adapter."""
    return site_cards(files, number, _ranked, _card, "texts")


def _ranked(items: list[WrittenSummary]) -> list[tuple[WrittenSummary, float]]:
    """Return each summary with its agreement, best first."""
    scored = zip(items, summary_agreement(items), strict=True)
    return sorted(scored, key=lambda pair: (-pair[1], pair[0].summary_id))


def _card(item: WrittenSummary, score: float) -> dict[str, Any]:
    remarks = [f"ROUGE-L {100 * score:.0f}"]
    remarks += ["the source did not fit and lost its beginning"] if item.cut else []
    remarks += [] if item.ended else ["the summary did not end within its budget"]
    return {
        "title": item.summary_id + (f", {item.group}" if item.group else ""),
        "texts": [("Source", item.source), ("Reference", item.reference), ("Generated", item.generated)],
        "remark": "; ".join(remarks) + ".",
    }
