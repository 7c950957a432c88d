# SPDX-License-Identifier: Apache-2.0
"""Questions with what the model holds of every option, at fixed ranks, right and wrong ones alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from medflare.evaluation.question_metrics import AnsweredQuestion
from medflare.reporting.gallery import at_ranks
from medflare.reporting.html import Html, details, paragraph, safe, table

Found = Sequence[tuple[Path, list[AnsweredQuestion]]]
SIGNS = {(True, True): "✓ chosen, right", (True, False): "+ chosen, wrong", (False, True): "− right"}
STYLE = {(True, True): "agree", (True, False): "invented", (False, True): "missed"}


def questions_section(found: Found, number: int) -> Html:
    """Up to `number` questions of every site and adapter; nothing where no predictions are at hand."""
    by_site: dict[tuple[str, str], list[AnsweredQuestion]] = {}
    for _, items in found:
        for item in items:
            by_site.setdefault((item.site, item.adapter), []).append(item)
    if not by_site or number < 1:
        return Html("")
    parts = [
        paragraph(
            "Questions stand at fixed ranks of the right option's margin over the best wrong one, from sure "
            "and right to sure and wrong; none was chosen by hand. A share is the option's likelihood among "
            "the options of its question."
        )
    ]
    several = len({adapter for _, adapter in by_site}) > 1
    for (site, adapter), items in sorted(by_site.items()):
        chosen = at_ranks(sorted(items, key=lambda item: (-item.margin, item.question_id)), number)
        name = f"{site}{f', {adapter} adapter' if several else ''}: {len(chosen)} of {len(items)} questions"
        parts.append(details(name, "".join(map(_card, chosen)), kind="site", opened=True))
    return Html("".join(parts))


def shares(scores: Sequence[float]) -> list[float]:
    """Each option's likelihood among the options."""
    top = max(scores)
    each = [math.exp(score - top) for score in scores]
    return [value / sum(each) for value in each]


def _card(item: AnsweredQuestion) -> Html:
    rows = []
    for (letter, text), share in zip(item.options.items(), shares([*item.scores.values()]), strict=True):
        key = (letter == item.chosen, letter == item.answer)
        mark = f'<ul class="chips"><li class="{STYLE[key]}">{SIGNS[key]}</li></ul>' if key in SIGNS else ""
        rows.append([letter, text, Html(mark), f"{item.scores[letter]:.2f}", f"{100 * share:.0f} %"])
    group = f", {item.group}" if item.group else ""
    cut = paragraph(f"Did not fit whole: {', '.join(item.cuts)}.", "why") if item.cuts else ""
    return Html(
        f'<article class="note"><h4>Question {safe(item.question_id)}{safe(group)}</h4>'
        f'<blockquote tabindex="0" aria-label="Text of the question">{safe(item.question)}</blockquote>{cut}'
        f"{table(['', 'option', '', 'log-likelihood', 'share'], rows, left=3)}</article>"
    )
