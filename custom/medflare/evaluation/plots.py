# SPDX-License-Identifier: Apache-2.0
"""Small charts as inline SVG: no script, no external file, colours from the page's style sheet.

Colours are CSS classes `s0` to `s7` (sites) and `all` (mean), so that light, dark and print follow the page.
Every mark has a `<title>`, which browsers show on hover and screen readers can read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medflare.evaluation.svg import (
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


def stretches(points: Points) -> list[Points]:
    """Runs of consecutive rounds: a line must not bridge a round in which a site was absent."""
    found: list[list[tuple[float, float]]] = []
    for point in points:
        if not found or point[0] > found[-1][-1][0] + 1:
            found.append([])
        found[-1].append(point)
    return [*found]


def line_chart(series: Mapping[str, Points], colours: Mapping[str, str], y_label: str) -> str:
    """Curves over rounds; the series named "mean" is drawn last and heavier.

    Args:
        series: name -> (round counted from 1, value); values may be negative.
        colours: name -> CSS class.
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
    parts.append(text(frame.left + frame.inner_width / 2, frame.height - 5, "round", "axis"))
    for name, points in sorted(series.items(), key=lambda item: item[0] == "mean"):
        finite = [(x, y) for x, y in points if math.isfinite(y)]
        for stretch in stretches(finite):
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in stretch)
            parts.append(f'<polyline points="{path}" class="curve {colours[name]}"/>')
        if len(finite) <= MANY_POINTS:
            parts += [
                dot(across(x), up(y), 3, f"dot {colours[name]}", f"{name}, round {x:.0f}: {number(y)}")
                for x, y in finite
            ]
    low, high = number(min(values)), number(max(values))
    return svg(frame, f"{y_label} over rounds by {', '.join(series)}; from {low} to {high}.", parts)


def traffic_chart(
    rounds: Sequence[int],
    sent: Mapping[str, Sequence[int]],
    received: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
) -> str:
    """Bytes per round stacked by site: sent by sites above the line, received by them below it.

    Args:
        sent, received: site -> bytes, one value per entry of `rounds`.
    """
    frame = Frame(width=940, height=250, left=66)
    top = max((sum(column) for column in zip(*sent.values(), strict=True)), default=0)
    bottom = max((sum(column) for column in zip(*received.values(), strict=True)), default=0)
    marks = ticks(-bottom, top, 6)
    up = scale((marks[0], marks[-1]), frame.height - frame.bottom, -frame.inner_height)
    step = frame.inner_width / max(len(rounds), 1)
    width = max(step * 0.7, 0.6) if len(rounds) > 60 else min(step * 0.62, 46)
    parts = y_axis(frame, marks, "bytes per round", lambda m: byte_size(abs(m)))
    for place, label in enumerate(rounds):
        x = frame.left + step * (place + 0.5) - width / 2
        for table, sign, verb in ((sent, 1, "sent"), (received, -1, "received")):
            level = 0.0
            for site, counts in table.items():
                y0, y1 = up(sign * level), up(sign * (level + counts[place]))
                told = f"round {label}: {site} {verb} {byte_size(counts[place])}"
                size = (width, abs(y1 - y0))
                parts.append(rect((x, min(y0, y1)), size, f"bar {colours[site]}", told))
                level += counts[place]
    shown = set(round_marks(min(rounds), max(rounds)))
    base = frame.height - frame.bottom
    parts += [
        text(frame.left + step * (i + 0.5), base + 16, str(r), "tick")
        for i, r in enumerate(rounds)
        if r in shown
    ]
    parts.append(text(frame.left + frame.inner_width / 2, frame.height - 5, "round", "axis"))
    return svg(
        frame, f"Bytes per round by site, {byte_size(top)} up and {byte_size(bottom)} down at most.", parts
    )


def presence_chart(rounds: Sequence[int], sites: Sequence[str], absent: Mapping[tuple[str, int], str]) -> str:
    """One row per site, one mark per round: filled where its update was accepted, a cross where not."""
    height = 22 * len(sites) + 44
    frame = Frame(width=940, height=height, left=150, top=6)
    step = min(frame.inner_width / max(len(rounds), 1), 60)
    parts: list[str] = []
    for row, site in enumerate(sites):
        y = frame.top + 22 * row
        parts.append(
            text(frame.left - 10, y + 14, site if len(site) < 22 else site[:20] + "…", "name", "end")
        )
        for place, label in enumerate(rounds):
            x, reason = frame.left + step * place, absent.get((site, label))
            told = f"{site}, round {label}: {reason or 'accepted'}"
            parts.append(rect((x, y), (max(step - 1.5, 0.7), 18), "gone" if reason else "here", told))
            if reason and step > 9:
                parts.append(text(x + step / 2 - 0.7, y + 14, "×", "cross"))
    shown = set(round_marks(min(rounds), max(rounds)))
    base = frame.top + 22 * len(sites) + 12
    parts += [
        text(frame.left + step * (i + 0.5), base, str(r), "tick") for i, r in enumerate(rounds) if r in shown
    ]
    parts.append(text(frame.left + step * len(rounds) / 2, base + 17, "round", "axis"))
    return svg(frame, f"Which of {len(sites)} sites took part in which of {len(rounds)} rounds.", parts)


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
