# SPDX-License-Identifier: Apache-2.0
"""Bars over rounds: bytes that sites sent and received, and shares of a total."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from medflare.reporting.charts.drawing import (
    TICK_OFFSET,
    Bar,
    Drawing,
    Frame,
    Label,
    round_ticks,
    rounds_axis,
    rounds_text,
    ticks,
    vertical_scale,
    x_title,
    y_axis,
)
from medflare.reporting.formatting import byte_size, number

MANY_ROUNDS = 120
"""Beyond this, neighbouring rounds share a bar of traffic."""
MANY_SHARES = 60
"""Bars of shares; of a longer run every so many rounds have one."""
MAX_BAR_WIDTH = 46
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def traffic_chart(
    rounds: Sequence[int],
    sent: Mapping[str, Sequence[int]],
    received: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
) -> Drawing:
    """Return bytes per round stacked by site: sent by sites above the line, received by them below it.

    Args:
        rounds: counted from 1.
        sent, received: site -> bytes, one value per entry of `rounds`; long runs show means of neighbours.
        colours: site -> CSS class.
    """
    frame = Frame(width=940, height=250, left=66)
    groups = _neighbours(len(rounds), MANY_ROUNDS)
    tables = [
        {site: [sum(counts[i] for i in g) / len(g) for g in groups] for site, counts in table.items()}
        for table in (sent, received)
    ]
    top, bottom = (max(map(sum, zip(*table.values(), strict=True)), default=0) for table in tables)
    marks = ticks(-bottom, top, 6)
    up = vertical_scale(frame, marks)
    step = frame.inner_width / len(groups)
    width = min(step * 0.66, MAX_BAR_WIDTH)
    shapes = y_axis(frame, marks, "bytes per round", lambda mark: byte_size(abs(mark)))
    for place, group in enumerate(groups):
        x = frame.left + step * (place + 0.5) - width / 2
        when = rounds_text(rounds[group[0]], rounds[group[-1]])
        for table, sign, verb in zip(tables, (1, -1), ("sent", "received"), strict=True):
            level = 0.0
            for site, counts in table.items():
                y0, y1 = up(sign * level), up(sign * (level + counts[place]))
                title = f"{when}: {site} {verb} {byte_size(counts[place])}"
                shapes.append(Bar(x, min(y0, y1), width, abs(y1 - y0), f"bar {colours[site]}", title))
                level += counts[place]
    shapes += rounds_axis(frame, rounds, frame.inner_width / len(rounds), frame.base + TICK_OFFSET)
    label = f"Bytes per round by site, {byte_size(top)} up and {byte_size(bottom)} down at most."
    return Drawing(frame, label, shapes)


def _neighbours(count: int, most: int) -> list[range]:
    """Return positions 0 to count in at most `most` runs of equal length."""
    size = max(1, math.ceil(count / most))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def share_chart(
    rounds: Sequence[int], shares: Mapping[str, Sequence[float]], colours: Mapping[str, str], y_label: str
) -> Drawing | None:
    """Return one bar for each round, from the first name at the bottom to the last at the top.

    Args:
        rounds: counted from 1.
        shares: name -> share of 1, one value per entry of `rounds`.
        colours: name -> CSS class.
        y_label: title of the y axis.

    Returns:
        None without rounds.
    """
    if not rounds:
        return None
    frame = Frame()
    every = max(1, -(-len(rounds) // MANY_SHARES))
    places = range(0, len(rounds), every)
    up = vertical_scale(frame, QUARTERS)
    step = frame.inner_width / len(places)
    width = min(step * 0.8, MAX_BAR_WIDTH)
    marked = set(round_ticks(rounds[0], rounds[-1])) if every == 1 else {rounds[p] for p in places[::10]}
    shapes = y_axis(frame, QUARTERS, y_label)
    for column, place in enumerate(places):
        x, level = frame.left + step * (column + 0.5), 0.0
        for name, values in shares.items():
            top = level + values[place]
            title = f"{name}, round {rounds[place]}: {number(values[place])}"
            height = up(level) - up(top)
            shapes.append(Bar(x - width / 2, up(top), width, height, f"bar {colours[name]}", title))
            level = top
        if rounds[place] in marked:
            shapes.append(Label(x, frame.base + TICK_OFFSET, str(rounds[place]), "tick"))
    shapes.append(x_title(frame, "round"))
    last = ", ".join(f"{name} {number(values[-1])}" for name, values in shares.items())
    return Drawing(frame, f"{y_label} over {len(rounds)} rounds; in the last one {last}.", shapes)
