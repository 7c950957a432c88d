# SPDX-License-Identifier: Apache-2.0
"""Schools of reporting: how each names the findings and what sentences it writes (schools.yaml)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import field_validator

from medflare.core.conditions import CONDITIONS
from medflare.core.config import Settings, read_package_table

ABNORMAL = CONDITIONS[:13]
"""The conditions that can be present, without "no finding"."""

Grades = tuple[str, str, str]
"""Words for a mild, a moderate and a severe finding."""


class ConditionWording(Settings):
    """Wording of one condition in a school: noun phrases with slots, and the sentence of its absence."""

    present: str
    absent: str


class Frames(Settings):
    """Sentences around the noun phrases: {np}, {bare} without article, {list} of nouns joined by "or".

    Attributes:
        removed: for devices; normal: what the impression or closing says when nothing is found.
        comparison: first sentence of the report of a later visit.
        changes: "new" ... -> clause appended to the sentence.
    """

    positive: str
    uncertain: str
    negative: str
    resolved: str
    removed: str
    normal: str
    comparison: str
    changes: dict[str, str]


class School(Settings):
    """The words of one school.

    Attributes:
        words: condition -> wording, for all of ABNORMAL.
        degrees, sizes: what the slots {sev} and {size} are filled with.
        details: condition -> what is added when it is moderate or severe.
    """

    words: dict[str, ConditionWording]
    degrees: Grades
    sizes: Grades
    details: dict[str, str]
    frames: Frames

    @field_validator("words")
    @classmethod
    def _every_condition(cls, words: dict[str, ConditionWording]) -> dict[str, ConditionWording]:
        if tuple(words) != ABNORMAL:
            raise ValueError(f"expected exactly these conditions, in order: {', '.join(ABNORMAL)}")
        return words


@lru_cache(maxsize=1)
def schools() -> dict[str, School]:
    """Return every school by its name, read once."""
    return read_package_table(dict[str, School], Path(__file__).with_name("schools.yaml"))


def location(vocabulary: str, side: str, zone: str) -> str:
    """Return the location of a lung finding in one vocabulary: "the left lower lobe", "both mid zones"."""
    if vocabulary in ("american", "academic"):
        if zone == "mid":
            middle = {"right": "the right middle lobe", "left": "the lingula"}
            return middle.get(side, "both mid lungs")
        return f"both {zone} lobes" if side == "bilateral" else f"the {side} {zone} lobe"
    noun = {"terse": "zone", "british": "zone", "itemised": "lung", "continental": "field"}[vocabulary]
    zone = "middle" if zone == "mid" and vocabulary == "continental" else zone
    if vocabulary == "terse":
        return f"{side} {zone} zone"
    return f"both {zone} {noun}s" if side == "bilateral" else f"the {side} {zone} {noun}"
