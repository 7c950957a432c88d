# SPDX-License-Identifier: Apache-2.0
"""Shapes, scales and axes that all charts are made of.

A drawing is plain data. `templates/chart.html` draws it as inline SVG: no script, no external file, colours
from the page's style sheet. Styles are CSS classes, `s0` to `s7` for series and `all` for a mean, so that
light, dark and print follow the page. Lengths are in the drawing's own units, about CSS pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from medflare.reporting.formatting import number

COLOURS = 8
"""Colours of series in the style sheet."""
TICK_OFFSET, AXIS_OFFSET = 16, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plotting area inside a picture."""

    width: int = 460
    height: int = 230
    left: int = 52
    right: int = 14
    top: int = 12
    bottom: int = 38

    @property
    def inner_width(self) -> int:
        """Between the margins."""
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> int:
        """Between the margins."""
        return self.height - self.top - self.bottom

    @property
    def base(self) -> int:
        """y of the lower edge of the plotting area."""
        return self.height - self.bottom

    @property
    def middle(self) -> float:
        """x of the middle of the plotting area."""
        return self.left + self.inner_width / 2


class Line(NamedTuple):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str


class Label(NamedTuple):
    """Words with their baseline at y."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: Literal["start", "middle", "end"] = "middle"


class AxisTitle(NamedTuple):
    """Words beside the y axis, turned, with their middle at y."""

    y: float
    text: str


class Bar(NamedTuple):
    """A filled box with its upper left corner at (x, y); `title` is shown on hover and read aloud."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


class Dot(NamedTuple):
    """A marker; `title` is shown on hover and read aloud."""

    x: float
    y: float
    radius: float
    style: str
    title: str


class Curve(NamedTuple):
    """A line through points."""

    points: Sequence[tuple[float, float]]
    style: str


Shape = Line | Label | AxisTitle | Bar | Dot | Curve


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: its size, what a screen reader says of it, and its shapes, the first one at the back."""

    frame: Frame
    label: str
    shapes: Sequence[Shape]


def colours_of(names: Sequence[str], count: int = COLOURS) -> dict[str, str]:
    """Return name -> CSS class, the first `count` colours in turn."""
    return {name: f"s{place % count}" for place, name in enumerate(names)}


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that span [low, high], about `count` of them."""
    span = (high - low) or abs(high) or 1.0
    raw = span / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]


def round_ticks(first: int, last: int) -> list[int]:
    """Return whole numbers for an axis of rounds, nine at most."""
    step = max(1, math.ceil((last - first) / 8))
    step = next((s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000) if s >= step), step)
    return [r for r in range(first, last + 1) if r % step == 0 or (r == first and step == 1)]


def scale(ends: tuple[float, float], start: float, length: float) -> Callable[[float], float]:
    """Return the linear map of ends[0] to `start` and of ends[1] to `start + length`."""
    span = (ends[1] - ends[0]) or 1.0
    return lambda value: start + (value - ends[0]) / span * length


def vertical_scale(frame: Frame, marks: Sequence[float]) -> Callable[[float], float]:
    """Return the map of values to y: the first tick at the lower edge, the last one at the upper edge."""
    return scale((marks[0], marks[-1]), frame.base, -frame.inner_height)


def y_axis(
    frame: Frame, marks: Sequence[float], title: str, show: Callable[[float], str] = number
) -> list[Shape]:
    """Return grid lines with an emphasised zero, their numbers, and the axis' title."""
    up = vertical_scale(frame, marks)
    end = frame.width - frame.right
    return [
        *(Line(frame.left, up(m), end, up(m), "zero" if m == 0 else "grid") for m in marks),
        *(Label(frame.left - 7, up(m) + 4, show(m), "tick", "end") for m in marks),
        AxisTitle(frame.top + frame.inner_height / 2, title),
    ]


def x_title(frame: Frame, text: str) -> Label:
    """Return the title below the x axis."""
    return Label(frame.middle, frame.height - AXIS_OFFSET, text, "axis")


def rounds_text(first: int, last: int) -> str:
    """Return `round 3` or `rounds 3 to 5`."""
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def rounds_axis(frame: Frame, rounds: Sequence[int], step: float, y: float) -> list[Shape]:
    """Return the numbers of some rounds below columns of width `step`, and the axis' title."""
    shown = set(round_ticks(min(rounds), max(rounds)))
    return [
        *(
            Label(frame.left + step * (place + 0.5), y, str(label), "tick")
            for place, label in enumerate(rounds)
            if label in shown
        ),
        Label(frame.left + step * len(rounds) / 2, y + 17, "round", "axis"),
    ]
