# SPDX-License-Identifier: Apache-2.0
"""Questions with the likelihood of every option, at fixed ranks, right and wrong answers alike."""

from __future__ import annotations

from typing import Any

from medflare.evaluation.agreement import option_shares
from medflare.evaluation.question_metrics import AnsweredQuestion
from medflare.reporting.galleries.common import Files, site_cards
from medflare.reporting.views import Cell, Chip, Table

MARKS = {
    (True, True): Chip(style="agree", text="✓ chosen, right"),
    (True, False): Chip(style="invented", text="+ chosen, wrong"),
    (False, True): Chip(style="missed", text="− right"),
}
"""(chosen, right) -> mark of an option."""


def view(files: Files, number: int) -> dict[str, Any] | None:
    """Return the data of `gallery_questions.html`: up to `number` questions of every site and adapter."""
    return site_cards(files, number, _ranked, _card, "questions")


def _ranked(items: list[AnsweredQuestion]) -> list[tuple[AnsweredQuestion]]:
    """Return the questions by the margin of the right option, surest first."""
    return [(item,) for item in sorted(items, key=lambda item: (-item.margin, item.question_id))]


def _card(item: AnsweredQuestion) -> dict[str, Any]:
    rows: list[list[object]] = []
    shares = option_shares([*item.scores.values()])
    for (letter, text), share in zip(item.options.items(), shares, strict=True):
        mark = MARKS.get((letter == item.chosen, letter == item.answer))
        verdict = Cell(chips=[mark]) if mark else ""
        rows.append([letter, text, verdict, f"{item.scores[letter]:.2f}", f"{100 * share:.0f} %"])
    head = ["", "option", "", "log-likelihood", "share"]
    return {
        "title": f"Question {item.question_id}" + (f", {item.group}" if item.group else ""),
        "question": item.question,
        "cut": f"Did not fit whole: {', '.join(item.cuts)}." if item.cuts else "",
        "options": Table(head=head, rows=rows, left=3),
    }
