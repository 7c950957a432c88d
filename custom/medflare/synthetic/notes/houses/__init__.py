# SPDX-License-Identifier: Apache-2.0
"""Styles of documentation: sections, sentence patterns, and how a house spells doses, routes and times.

Each house is a YAML file of this folder.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, field_validator

from medflare.core.config import Settings, read_package_data
from medflare.core.errors import ConfigError

NAMES = ("narrative", "structured", "telegraphic", "dictated", "letter")
"""The houses, in the order in which they are counted and drawn."""

OFTEN = 3
"""Weight of a pattern under "often" relative to the others, in draws."""


class SummaryFrames(Settings):
    """Summaries of a house: frames with {} for a list of names, and its sentence where there are none."""

    problems: str
    possible: str
    drugs: str
    nothing: str


class NoteSection(Settings):
    """A part of a note: `least` to `most` sentences drawn from the rules, shown with probability `share`."""

    heading: str
    rules: tuple[str, ...]
    least: NonNegativeInt = 1
    most: NonNegativeInt = 2
    share: float = Field(default=1.0, ge=0, le=1)
    listed: bool = Field(default=False, description="a numbered list with one sentence a line")


class NotesHouse(Settings):
    """A style of documentation.

    Attributes:
        sections: of every note, in order; `glue` stands between a heading and its sentences.
        rules: rule -> patterns of `grammar.Writer`; they come before the shared ones of `phrases`.
        frequency, form, route: how the classes of the drug lexicon are spelled; every house spells the same
            frequencies.
        summary: how the house sums up a note.
        spelling: replacements over the whole text ("anemia" -> "anaemia"); capital: sentences begin with one.
    """

    name: str
    sections: tuple[NoteSection, ...]
    rules: dict[str, tuple[str, ...]]
    frequency: dict[str, tuple[str, ...]]
    form: dict[str, tuple[str, ...]]
    route: dict[str, tuple[str, ...]]
    summary: SummaryFrames
    glue: str = " "
    between: str = "\n"
    spelling: dict[str, str] = Field(default_factory=dict)
    capital: bool = True

    @field_validator("rules", mode="before")
    @classmethod
    def _repeat_often(cls, rules: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Replace `often: pattern` by the pattern OFTEN times, so that a uniform draw gives it its weight."""
        return {
            name: [
                item
                for pattern in patterns
                for item in ([pattern["often"]] * OFTEN if isinstance(pattern, dict) else [pattern])
            ]
            for name, patterns in rules.items()
        }


@lru_cache(maxsize=1)
def note_houses() -> dict[str, NotesHouse]:
    """Return every house by its name, read once."""
    houses = [read_package_data(NotesHouse, Path(__file__).with_name(f"{name}.yaml")) for name in NAMES]
    for house in houses:
        if different := set(house.frequency) ^ set(houses[0].frequency):
            raise ConfigError(f"{house.name}: frequency differs from {NAMES[0]} in {', '.join(different)}")
    return {house.name: house for house in houses}
