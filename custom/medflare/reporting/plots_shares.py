# SPDX-License-Identifier: Apache-2.0
"""Shares of a whole over rounds, as stacked bars; inline SVG like the charts of plots.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medflare.reporting.svg import Frame, number, rect, round_marks, scale, svg, text, y_axis

MOST = 60
"""Bars; of a longer run every so many rounds have one."""
MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def share_chart(
    rounds: Sequence[int], shares: Mapping[str, Sequence[float]], colours: Mapping[str, str], y_label: str
) -> str:
    """One bar for each round, from the first name at the bottom to the last at the top.

    Args:
        shares: name -> share of 1, one value per entry of `rounds`.
        colours: name -> CSS class.
    """
    if not rounds:
        return ""
    frame = Frame()
    every = max(1, -(-len(rounds) // MOST))
    places = range(0, len(rounds), every)
    up = scale((0.0, 1.0), frame.height - frame.bottom, -frame.inner_height)
    step = frame.inner_width / len(places)
    width = min(step * 0.8, 46)
    marked = set(round_marks(rounds[0], rounds[-1])) if every == 1 else {rounds[p] for p in places[::10]}
    parts = y_axis(frame, MARKS, y_label)
    for column, place in enumerate(places):
        x, level = frame.left + step * (column + 0.5), 0.0
        for name, values in shares.items():
            top = level + values[place]
            told = f"{name}, round {rounds[place]}: {number(values[place])}"
            corner, size = (x - width / 2, up(top)), (width, up(level) - up(top))
            parts.append(rect(corner, size, f"bar {colours[name]}", told))
            level = top
        if rounds[place] in marked:
            parts.append(text(x, frame.height - frame.bottom + 16, str(rounds[place]), "tick"))
    parts.append(text(frame.left + frame.inner_width / 2, frame.height - 5, "round", "axis"))
    last = ", ".join(f"{name} {number(values[-1])}" for name, values in shares.items())
    return svg(frame, f"{y_label} over {len(rounds)} rounds; in the last one {last}.", parts)
