# SPDX-License-Identifier: Apache-2.0
"""The few SVG elements and axis rules that the charts of plots.py are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plotting area inside a picture, in its own units (about CSS pixels)."""

    width: int = 460
    height: int = 230
    left: int = 52
    right: int = 14
    top: int = 12
    bottom: int = 38

    @property
    def inner_width(self) -> int:
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> int:
        return self.height - self.top - self.bottom


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span [low, high], about `count` of them."""
    span = (high - low) or abs(high) or 1.0
    raw = span / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """A short number for an axis or a tooltip."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10000 or size < 0.001:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e−")
    text = f"{value:.0f}" if size >= 100 else f"{value:.3g}"
    return text.replace("-", "−")


def byte_size(count: float) -> str:
    """Bytes in decimal units, as network people count them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def scale(ends: tuple[float, float], start: float, length: float) -> Callable[[float], float]:
    """Maps ends[0] to `start` and ends[1] to `start + length`."""
    span = (ends[1] - ends[0]) or 1.0
    return lambda value: start + (value - ends[0]) / span * length


def svg(frame: Frame, label: str, body: Sequence[str]) -> str:
    """A picture; `label` is what a screen reader says."""
    box, words = f"0 0 {frame.width} {frame.height}", escape(label, quote=True)
    return f'<svg viewBox="{box}" role="img" aria-label="{words}">{"".join(body)}</svg>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words with their baseline at y."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def rect(corner: tuple[float, float], size: tuple[float, float], kind: str, title: str) -> str:
    """A filled box with its upper left corner at `corner`."""
    place = f'x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{size[0]:.2f}" height="{size[1]:.2f}"'
    return f'<rect {place} class="{kind}"><title>{escape(title)}</title></rect>'


def dot(x: float, y: float, radius: float, kind: str, title: str) -> str:
    """A marker that tells its value."""
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f'<circle {place} class="{kind}"><title>{escape(title)}</title></circle>'


def y_axis(
    frame: Frame, marks: Sequence[float], label: str, show: Callable[[float], str] = number
) -> list[str]:
    """Grid lines, their numbers, an emphasised zero and the axis' name."""
    place = scale((marks[0], marks[-1]), frame.height - frame.bottom, -frame.inner_height)
    end = frame.width - frame.right
    parts = [line(frame.left, place(m), end, place(m), "zero" if m == 0 else "grid") for m in marks]
    parts += [text(frame.left - 7, place(m) + 4, show(m), "tick", "end") for m in marks]
    middle = frame.top + frame.inner_height / 2
    parts.append(
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" class="axis" text-anchor="middle">'
        f"{escape(label)}</text>"
    )
    return parts


def round_marks(first: int, last: int) -> list[int]:
    """Whole numbers for an axis of rounds."""
    step = max(1, math.ceil((last - first) / 8))
    step = next((s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000) if s >= step), step)
    return [r for r in range(first, last + 1) if r % step == 0 or (r == first and step == 1)]
