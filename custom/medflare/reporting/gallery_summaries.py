# SPDX-License-Identifier: Apache-2.0
"""Source, reference and generated summary side by side, good and bad ones alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medflare.evaluation import overlap
from medflare.evaluation.report_metrics import one_each, tokenised
from medflare.evaluation.summary_metrics import WrittenSummary
from medflare.reporting.gallery import at_ranks
from medflare.reporting.html import Html, details, paragraph, safe

Found = Sequence[tuple[Path, list[WrittenSummary]]]


def summaries_section(found: Found, number: int) -> Html:
    """Up to `number` texts of every site and adapter; nothing where no predictions are at hand."""
    by_site: dict[tuple[str, str], list[WrittenSummary]] = {}
    for _, items in found:
        for item in items:
            by_site.setdefault((item.site, item.adapter), []).append(item)
    if not by_site or number < 1:
        return Html("")
    parts = [
        paragraph(
            "Texts stand at fixed ranks of ROUGE-L between the two summaries, from good to bad; none was "
            "chosen by hand."
        )
    ]
    several = len({adapter for _, adapter in by_site}) > 1
    for (site, adapter), items in sorted(by_site.items()):
        ranked = sorted(
            zip(agreement(items), items, strict=True), key=lambda pair: (-pair[0], pair[1].summary_id)
        )
        chosen = at_ranks(ranked, number)
        name = f"{site}{f', {adapter} adapter' if several else ''}: {len(chosen)} of {len(items)} texts"
        cards = "".join(_card(item, score) for score, item in chosen)
        parts.append(details(name, cards, kind="site", opened=True))
    return Html("".join(parts))


def agreement(items: Sequence[WrittenSummary]) -> list[float]:
    """ROUGE-L of each text's summary."""
    gold, said = [item.reference for item in items], [item.generated for item in items]
    return [float(score) for score in overlap.rouge_l(one_each(tokenised(gold)), tokenised(said)).sums[:, 0]]


def _card(item: WrittenSummary, score: float) -> Html:
    group = f", {item.group}" if item.group else ""
    told = [f"ROUGE-L {100 * score:.0f}"]
    told += ["the source did not fit and lost its beginning"] if item.cut else []
    told += [] if item.ended else ["the summary did not end within its budget"]
    return Html(
        f'<article class="written"><h4 class="whole">{safe(item.summary_id)}{safe(group)}</h4>'
        f"{_part('Source', item.source)}{_part('Reference', item.reference)}"
        f"{_part('Generated', item.generated)}"
        f'<div class="whole">{paragraph("; ".join(told) + ".", "why")}</div></article>'
    )


def _part(name: str, text: str) -> str:
    shown = safe(text) if text.strip() else '<span class="soft">(empty)</span>'
    return f"<div><h4>{name}</h4><blockquote>{shown}</blockquote></div>"
