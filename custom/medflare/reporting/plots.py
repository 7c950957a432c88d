# SPDX-License-Identifier: Apache-2.0
"""Small charts as inline SVG: no script, no external file, colours from the page's style sheet.

Colours are CSS classes `s0` to `s7` (sites) and `all` (mean), so that light, dark and print follow the page.
Every mark has a `<title>`, which browsers show on hover and screen readers can read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medflare.reporting.svg import (
    Frame,
    byte_size,
    dot,
    line,
    number,
    rect,
    round_marks,
    scale,
    svg,
    text,
    ticks,
    y_axis,
)

Points = Sequence[tuple[float, float]]
COLOURS = 8
MANY_POINTS = 40  # beyond this, lines carry no markers
MANY_BARS = 120  # beyond this, neighbouring rounds share a bar


def stretches(points: Points, step: float = 1) -> list[Points]:
    """Runs of consecutive rounds: a line must not bridge a round in which a site was absent.

    step: from one round to the next.
    """
    found: list[list[tuple[float, float]]] = []
    for point in points:
        if not found or point[0] > found[-1][-1][0] + step:
            found.append([])
        found[-1].append(point)
    return [*found]


def line_chart(
    series: Mapping[str, Points],
    colours: Mapping[str, str],
    y_label: str,
    x_label: str = "round",
    step: float = 1,
) -> str:
    """Curves over rounds; the series named "mean" is drawn last and heavier.

    Args:
        series: name -> (round counted from 1, value); values may be negative.
        colours: name -> CSS class.
        x_label: what is counted; step: how many of that are from one point to the next.
    """
    frame = Frame()
    values = [y for points in series.values() for _, y in points if math.isfinite(y)]
    rounds = [int(x) for points in series.values() for x, _ in points]
    if not values:
        return ""
    marks = ticks(min(values), max(values))
    across = scale((min(rounds), max(rounds)), frame.left + 8, frame.inner_width - 16)
    up = scale((marks[0], marks[-1]), frame.height - frame.bottom, -frame.inner_height)
    parts = y_axis(frame, marks, y_label)
    base = frame.height - frame.bottom
    parts += [text(across(r), base + 16, str(r), "tick") for r in round_marks(min(rounds), max(rounds))]
    parts.append(text(frame.left + frame.inner_width / 2, frame.height - 5, x_label, "axis"))
    for name, points in sorted(series.items(), key=lambda item: item[0] == "mean"):
        finite = [(x, y) for x, y in points if math.isfinite(y)]
        for stretch in stretches(finite, step):
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in stretch)
            parts.append(f'<polyline points="{path}" class="curve {colours[name]}"/>')
        if len(finite) <= MANY_POINTS:
            parts += [
                dot(across(x), up(y), 3, f"dot {colours[name]}", f"{name}, {x_label} {x:.0f}: {number(y)}")
                for x, y in finite
            ]
    low, high = number(min(values)), number(max(values))
    return svg(frame, f"{y_label} over {x_label}s by {', '.join(series)}; from {low} to {high}.", parts)


def traffic_chart(
    rounds: Sequence[int],
    sent: Mapping[str, Sequence[int]],
    received: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
) -> str:
    """Bytes per round stacked by site: sent by sites above the line, received by them below it.

    Args:
        sent, received: site -> bytes, one value per entry of `rounds`; long runs show means of neighbours.
    """
    frame = Frame(width=940, height=250, left=66)
    groups = _neighbours(len(rounds), MANY_BARS)
    tables = [
        {site: [sum(counts[i] for i in g) / len(g) for g in groups] for site, counts in table.items()}
        for table in (sent, received)
    ]
    top, bottom = (max(map(sum, zip(*table.values(), strict=True)), default=0) for table in tables)
    marks = ticks(-bottom, top, 6)
    up = scale((marks[0], marks[-1]), frame.height - frame.bottom, -frame.inner_height)
    step = frame.inner_width / len(groups)
    width = min(step * 0.66, 46)
    parts = y_axis(frame, marks, "bytes per round", lambda m: byte_size(abs(m)))
    for place, group in enumerate(groups):
        x = frame.left + step * (place + 0.5) - width / 2
        when = _span(rounds[group[0]], rounds[group[-1]])
        for table, sign, verb in zip(tables, (1, -1), ("sent", "received"), strict=True):
            level = 0.0
            for site, counts in table.items():
                y0, y1 = up(sign * level), up(sign * (level + counts[place]))
                told = f"{when}: {site} {verb} {byte_size(counts[place])}"
                parts.append(rect((x, min(y0, y1)), (width, abs(y1 - y0)), f"bar {colours[site]}", told))
                level += counts[place]
    parts += _round_axis(frame, rounds, frame.inner_width / len(rounds), frame.height - frame.bottom + 16)
    words = f"Bytes per round by site, {byte_size(top)} up and {byte_size(bottom)} down at most."
    return svg(frame, words, parts)


def _neighbours(count: int, most: int) -> list[range]:
    """Positions 0 to count in at most `most` runs of equal length."""
    size = max(1, math.ceil(count / most))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _span(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _round_axis(frame: Frame, rounds: Sequence[int], step: float, y: float) -> list[str]:
    """Numbers of some rounds below columns of width `step`, and the word."""
    shown = set(round_marks(min(rounds), max(rounds)))
    parts = [
        text(frame.left + step * (i + 0.5), y, str(r), "tick") for i, r in enumerate(rounds) if r in shown
    ]
    return [*parts, text(frame.left + step * len(rounds) / 2, y + 17, "round", "axis")]


def presence_chart(rounds: Sequence[int], sites: Sequence[str], absent: Mapping[tuple[str, int], str]) -> str:
    """One row per site: filled where its update was accepted, a cross where not."""
    frame = Frame(width=940, height=22 * len(sites) + 44, left=150, top=6)
    step = min(frame.inner_width / len(rounds), 60)
    gap = 1.5 if step > 6 else 0.0
    parts: list[str] = []
    for row, site in enumerate(sites):
        y = frame.top + 22 * row
        name = site if len(site) < 22 else site[:20] + "…"
        parts.append(text(frame.left - 10, y + 14, name, "name", "end"))
        reasons = [absent.get((site, label), "") for label in rounds]
        for start, stop in _runs(reasons) if not gap else [(i, i + 1) for i in range(len(rounds))]:
            x, reason = frame.left + step * start, reasons[start]
            told = f"{site}, {_span(rounds[start], rounds[stop - 1])}: {reason or 'accepted'}"
            size = (step * (stop - start) - gap, 18.0)
            parts.append(rect((x, y), size, "gone" if reason else "here", told))
            if reason and step > 9:
                parts.append(text(x + step / 2 - 0.7, y + 14, "×", "cross"))
    parts += _round_axis(frame, rounds, step, frame.top + 22 * len(sites) + 12)
    return svg(frame, f"Which of {len(sites)} sites took part in which of {len(rounds)} rounds.", parts)


def _runs(values: Sequence[str]) -> list[tuple[int, int]]:
    """Half-open stretches of equal values, so that a thousand rounds are a few boxes."""
    starts = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return list(zip(starts, [*starts[1:], len(values)], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """One line of `interval_chart`: a value with its interval; `group` names the block it stands in."""

    group: str
    name: str
    value: float
    low: float
    high: float
    colour: str
    hollow: bool = False


def interval_chart(items: Sequence[Whisker], x_label: str) -> str:
    """Dot and whisker for every system, blocks one below the other; hollow dots set one kind apart."""
    groups = list(dict.fromkeys(item.group for item in items))
    height = 24 * len(items) + 26 * len(groups) + 46
    frame = Frame(width=460, height=height, left=128, top=4, bottom=38)
    marks = ticks(min(0.0, *(i.low for i in items)), max(i.high for i in items), 5)
    across = scale((marks[0], marks[-1]), frame.left, frame.inner_width - 26)
    base = frame.height - frame.bottom
    parts = [line(across(m), frame.top, across(m), base, "zero" if m == 0 else "grid") for m in marks]
    parts += [text(across(m), base + 16, number(m), "tick") for m in marks]
    parts.append(text(frame.left + frame.inner_width / 2, frame.height - 5, x_label, "axis"))
    y = float(frame.top)
    for group in groups:
        parts.append(text(8, y + 17, group, "group", "start"))
        y += 26
        for item in (i for i in items if i.group == group):
            x, kind = across(item.value), f"{item.colour} hollow" if item.hollow else item.colour
            told = f"{item.group}, {item.name}: {item.value:.1f} [{item.low:.1f}, {item.high:.1f}]"
            parts += [
                text(frame.left - 10, y + 13, item.name, "name", "end"),
                line(across(item.low), y + 9, across(item.high), y + 9, f"whisker {item.colour}"),
                dot(x, y + 9, 5, f"dot {kind}", told),
                text(across(item.high) + 6, y + 13, f"{item.value:.1f}", "value", "start"),
            ]
            y += 24
    return svg(frame, f"{x_label} with 95 % intervals for {len(items)} results.", parts)
