# SPDX-License-Identifier: Apache-2.0
"""Scores with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medflare.reporting.charts.drawing import (
    TICK_OFFSET,
    Dot,
    Drawing,
    Frame,
    Label,
    Line,
    Shape,
    scale,
    ticks,
    x_title,
)
from medflare.reporting.formatting import number

ROW_HEIGHT, GROUP_HEIGHT = 24, 26
MIN_LEFT, MAX_LEFT, LETTER = 128, 230, 8.2
"""Margin for names, from the width of a letter of a block's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One line of `interval_chart`.

    Attributes:
        group: name of the block it stands in.
        name: of the system.
        value, low, high: as shown, times 100 for scores.
        colour: CSS class.
        hollow: whether its dot is hollow, which sets one sort of system apart.
    """

    group: str
    name: str
    value: float
    low: float
    high: float
    colour: str
    hollow: bool = False


def interval_chart(items: Sequence[Interval], x_label: str) -> Drawing:
    """Return a dot and a whisker for every system, blocks one below the other."""
    groups = list(dict.fromkeys(item.group for item in items))
    height = ROW_HEIGHT * len(items) + GROUP_HEIGHT * len(groups) + 46
    longest = max(map(len, groups), default=0)
    left = min(MAX_LEFT, max(MIN_LEFT, round(LETTER * longest) + 16))
    frame = Frame(width=460, height=height, left=left, top=4, bottom=38)
    marks = ticks(min(0.0, *(i.low for i in items)), max(i.high for i in items), 5)
    across = scale((marks[0], marks[-1]), frame.left, frame.inner_width - 26)
    shapes: list[Shape] = [
        Line(across(m), frame.top, across(m), frame.base, "zero" if m == 0 else "grid") for m in marks
    ]
    shapes += [Label(across(m), frame.base + TICK_OFFSET, number(m), "tick") for m in marks]
    shapes.append(x_title(frame, x_label))
    y = float(frame.top)
    for group in groups:
        shapes.append(Label(8, y + 17, group, "group", "start"))
        y += GROUP_HEIGHT
        for item in (i for i in items if i.group == group):
            style = f"{item.colour} hollow" if item.hollow else item.colour
            title = f"{item.group}, {item.name}: {item.value:.1f} [{item.low:.1f}, {item.high:.1f}]"
            shapes += [
                Label(frame.left - 10, y + 13, item.name, "name", "end"),
                Line(across(item.low), y + 9, across(item.high), y + 9, f"whisker {item.colour}"),
                Dot(across(item.value), y + 9, 5, f"dot {style}", title),
                Label(across(item.high) + 6, y + 13, f"{item.value:.1f}", "value", "start"),
            ]
            y += ROW_HEIGHT
    return Drawing(frame, f"{x_label} with 95 % intervals for {len(items)} results.", shapes)
