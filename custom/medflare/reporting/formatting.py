# SPDX-License-Identifier: Apache-2.0
"""Numbers, sizes, durations and settings as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MISSING = "–"
"""Stands where there is no value."""


def number(value: float) -> str:
    """Return a short number for an axis or a tooltip, such as `0.25`, `1.2e4` or `−3`."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10000 or size < 0.001:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e−")
    text = f"{value:.0f}" if size >= 100 else f"{value:.3g}"
    return text.replace("-", "−")


def number_or_missing(value: float | None) -> str:
    """Return a short number, or a dash for None."""
    return MISSING if value is None else number(value)


def byte_size(count: float) -> str:
    """Return bytes in decimal units, as network people count them: `1.11 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Return a time such as `7 min 12 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def short_count(count: int) -> str:
    """Return a count of weights such as `1.25 M`, or a dash for 0."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return str(count) if count else MISSING


def plural(count: int, noun: str) -> str:
    """Return `1 site`, `3 sites`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def sentence_case(text: str) -> str:
    """Return the text with its first letter in upper case and the others as they are."""
    return text[:1].upper() + text[1:]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values as `a / b` -> text, whole numbers with their thousands separated."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            texts |= flatten(value, f"{label} / ")
        elif isinstance(value, int) and not isinstance(value, bool):
            texts[label] = f"{value:,}"
        else:
            texts[label] = str(value)
    return texts
