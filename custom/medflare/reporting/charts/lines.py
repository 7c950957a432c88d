# SPDX-License-Identifier: Apache-2.0
"""Curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from medflare.reporting.charts.drawing import (
    TICK_OFFSET,
    Curve,
    Dot,
    Drawing,
    Frame,
    Label,
    Shape,
    round_ticks,
    scale,
    ticks,
    vertical_scale,
    x_title,
    y_axis,
)
from medflare.reporting.formatting import number

Points = Sequence[tuple[float, float]]
"""(round counted from 1, value)."""
MANY_POINTS = 40
"""Beyond this, lines carry no markers."""


def contiguous(points: Points, step: float = 1) -> list[Points]:
    """Split a line where a round is missing: it must not bridge a round in which a site was absent.

    Args:
        points: in order of their rounds.
        step: from one round to the next.
    """
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] > parts[-1][-1][0] + step:
            parts.append([])
        parts[-1].append(point)
    return [*parts]


def line_chart(
    series: Mapping[str, Points],
    colours: Mapping[str, str],
    y_label: str,
    x_label: str = "round",
    step: float = 1,
) -> Drawing | None:
    """Return curves over rounds; the series named "mean" is drawn last and heavier.

    Args:
        series: name -> points; values may be negative, those that are not finite are left out.
        colours: name -> CSS class.
        y_label: title of the y axis.
        x_label: what is counted from left to right.
        step: how many of these are from one point to the next.

    Returns:
        None where there is no finite value.
    """
    values = [y for points in series.values() for _, y in points if math.isfinite(y)]
    rounds = [int(x) for points in series.values() for x, _ in points]
    if not values:
        return None
    frame, marks = Frame(), ticks(min(values), max(values))
    across = scale((min(rounds), max(rounds)), frame.left + 8, frame.inner_width - 16)
    up = vertical_scale(frame, marks)
    shapes = y_axis(frame, marks, y_label)
    for place in round_ticks(min(rounds), max(rounds)):
        shapes.append(Label(across(place), frame.base + TICK_OFFSET, str(place), "tick"))
    shapes.append(x_title(frame, x_label))
    for name, points in sorted(series.items(), key=lambda item: item[0] == "mean"):
        finite = [(x, y) for x, y in points if math.isfinite(y)]
        curves: list[Shape] = [
            Curve([(across(x), up(y)) for x, y in part], f"curve {colours[name]}")
            for part in contiguous(finite, step)
        ]
        dots: list[Shape] = [
            Dot(across(x), up(y), 3, f"dot {colours[name]}", f"{name}, {x_label} {x:.0f}: {number(y)}")
            for x, y in finite
        ]
        shapes += curves + (dots if len(finite) <= MANY_POINTS else [])
    low, high = number(min(values)), number(max(values))
    return Drawing(frame, f"{y_label} over {x_label}s by {', '.join(series)}; from {low} to {high}.", shapes)
