# SPDX-License-Identifier: Apache-2.0
"""Chart of the sites that took part in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medflare.reporting.charts.drawing import Bar, Drawing, Frame, Label, Shape, rounds_axis, rounds_text

ROW_HEIGHT, BAR_HEIGHT, MAX_STEP = 22, 18.0, 60
LONGEST_NAME = 22


def presence_chart(
    rounds: Sequence[int], sites: Sequence[str], absent: Mapping[tuple[str, int], str]
) -> Drawing:
    """Return one row per site: filled where its update was accepted, a cross where not.

    Args:
        rounds: counted from 1.
        sites: a row each.
        absent: (site, round) -> reason.
    """
    frame = Frame(width=940, height=ROW_HEIGHT * len(sites) + 44, left=150, top=6)
    step = min(frame.inner_width / len(rounds), MAX_STEP)
    gap = 1.5 if step > 6 else 0.0
    shapes: list[Shape] = []
    for row, site in enumerate(sites):
        y = frame.top + ROW_HEIGHT * row
        name = site if len(site) < LONGEST_NAME else site[: LONGEST_NAME - 2] + "…"
        shapes.append(Label(frame.left - 10, y + 14, name, "name", "end"))
        reasons = [absent.get((site, label), "") for label in rounds]
        runs = [(i, i + 1) for i in range(len(rounds))] if gap else _runs_of_equal(reasons)
        for start, stop in runs:
            x, reason = frame.left + step * start, reasons[start]
            title = f"{site}, {rounds_text(rounds[start], rounds[stop - 1])}: {reason or 'accepted'}"
            width = step * (stop - start) - gap
            shapes.append(Bar(x, y, width, BAR_HEIGHT, "gone" if reason else "here", title))
            if reason and step > 9:
                shapes.append(Label(x + step / 2 - 0.7, y + 14, "×", "cross"))
    shapes += rounds_axis(frame, rounds, step, frame.top + ROW_HEIGHT * len(sites) + 12)
    label = f"Which of {len(sites)} sites took part in which of {len(rounds)} rounds."
    return Drawing(frame, label, shapes)


def _runs_of_equal(values: Sequence[str]) -> list[tuple[int, int]]:
    """Return half-open runs of equal values, so that a thousand rounds are a few boxes."""
    starts = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return list(zip(starts, [*starts[1:], len(values)], strict=True))
