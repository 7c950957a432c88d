# SPDX-License-Identifier: Apache-2.0
"""Small knowledge graphs and keys for the tests of knowledge graphs and their comparison."""

from __future__ import annotations

from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Triple


def key(byte: int = 7, context: str = "project") -> SketchKey:
    return SketchKey(bytes([byte]) * 32, context)


def triple(number: int) -> Triple:
    return Triple(f"disease {number % 41}", "has symptom", f"symptom {number}")


def graph(first: int, last: int, confidence: float = 1.0) -> dict[Triple, float]:
    """Triples first … last − 1."""
    return {triple(number): confidence for number in range(first, last)}
