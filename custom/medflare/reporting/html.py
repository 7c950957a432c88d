# SPDX-License-Identifier: Apache-2.0
"""Pieces of HTML that the page's sections share; all text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from medflare.reporting.plots import COLOURS


class Html(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


def safe(value: object) -> str:
    """`value` as HTML text; Html passes as it is."""
    return value if isinstance(value, Html) else escape(str(value))


def table(
    head: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    kind: str = "",
    left: int = 1,
) -> Html:
    """A data table; the first cell of a row is its heading, the first `left` columns are left-aligned."""

    def attributes(place: int) -> str:
        return ' class="left"' if place < left else ""

    titles = "".join(f'<th scope="col"{attributes(i)}>{safe(name)}</th>' for i, name in enumerate(head))
    names = [safe(row[0]) for row in rows]
    body = "".join(
        f'<tr{_place(names, number)}><th scope="row">{names[number]}</th>'
        + "".join(f"<td{attributes(i)}>{safe(value)}</td>" for i, value in enumerate(row[1:], start=1))
        + "</tr>"
        for number, row in enumerate(rows)
    )
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = f"<thead><tr>{titles}</tr></thead>" if any(head) else ""
    inside = f"{words}{top}<tbody>{body}</tbody>"
    return Html(f'<div class="scroll"><table class="{kind}">{inside}</table></div>')


def _place(names: Sequence[str], number: int) -> str:
    """Marks the rows of a block with one name, so that the style sheet can show the name once."""
    if number and names[number] == names[number - 1]:
        return ' class="within"'
    return ' class="first"' if number and names.count(names[number]) > 1 else ""


def heat_table(
    head: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]], *, caption: str, top: float = 1.0
) -> Html:
    """A table of shares in percent whose cells are shaded by their value; `top` gets the darkest shade."""
    titles = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = []
    for name, values in rows:
        cells = "".join(
            '<td style="--v:0">–</td>'
            if value is None
            else f'<td style="--v:{min(max(value / (top or 1), 0), 1):.2f}">{100 * value:.0f}</td>'
            for value in values
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return Html(
        f'<div class="scroll"><table class="heat"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def facts(pairs: Mapping[str, object]) -> Html:
    """Names and values, one line each."""
    return table(["", ""], list(pairs.items()), kind="compact", left=2) if pairs else Html("")


def figure(title: str, picture: str, remark: str = "") -> Html:
    """A chart with its title; nothing where there is no chart."""
    small = f" <small>{escape(remark)}</small>" if remark else ""
    return Html(
        f"<figure><figcaption>{escape(title)}{small}</figcaption>{picture}</figure>" if picture else ""
    )


def details(summary: str, inside: str, kind: str = "", opened: bool = False) -> Html:
    """Something to unfold."""
    state = " open" if opened else ""
    return Html(f'<details class="{kind}"{state}><summary>{escape(summary)}</summary>{inside}</details>')


def legend(colours: Mapping[str, str]) -> Html:
    """Which colour is which series."""
    items = "".join(f'<li class="{kind}"><i></i>{escape(name)}</li>' for name, kind in colours.items())
    return Html(f'<ul class="legend">{items}</ul>')


def paragraph(words: object, kind: str = "") -> Html:
    """A paragraph of text or markup."""
    return Html(f'<p class="{kind}">{safe(words)}</p>')


def colours_of(sites: Sequence[str]) -> dict[str, str]:
    """Site -> CSS class; a site keeps its colour through the whole page."""
    return {site: f"s{place % COLOURS}" for place, site in enumerate(sites)}


def duration(seconds: float) -> str:
    """`7 min 12 s` or the like."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as `a / b` -> text, whole numbers with thousands separated."""
    found: dict[str, str] = {}
    for name, value in values.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{label} / ")
        elif isinstance(value, int) and not isinstance(value, bool):
            found[label] = f"{value:,}"
        else:
            found[label] = str(value)
    return found
