# SPDX-License-Identifier: Apache-2.0
"""Styles of documentation: sections, sentence patterns, and how a house spells doses, routes and times.

Each house is a YAML file of this folder.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from medflare.core.config import Settings, read_package_data

NAMES = ("narrative", "structured", "telegraphic", "dictated", "letter")
"""The houses, in the order in which they are counted and drawn."""

OFTEN = 3
"""How many times as often as the others a pattern under "often" is drawn."""

FREQUENCIES = (
    "daily",
    "twice daily",
    "three times daily",
    "four times daily",
    "five times daily",
    "nightly",
    "every morning",
    "as needed",
    "every four hours",
    "every six hours",
    "every eight hours",
    "every twelve hours",
    "every three days",
    "once a week",
    "once a month",
    "every three weeks",
    "every eight weeks",
    "once",
)
"""The classes of the drug lexicon, in the order in which a house spells them."""


class Section(Settings):
    """A part of a note: `least` to `most` sentences drawn from the rules, shown with probability `share`."""

    heading: str
    rules: tuple[str, ...]
    least: int = 1
    most: int = 2
    share: float = 1.0
    listed: bool = Field(default=False, description="a numbered list with one sentence a line")


class NotesHouse(Settings):
    """A style of documentation.

    Attributes:
        sections: of every note, in order; `glue` stands between a heading and its sentences.
        rules: rule -> patterns of `grammar.Writer`; they come before the shared ones of `phrases`.
        frequency, form, route: how the classes of the drug lexicon are spelled.
        spelling: replacements over the whole text ("anemia" -> "anaemia"); capital: sentences begin with one.
    """

    name: str
    sections: tuple[Section, ...]
    rules: dict[str, tuple[str, ...]]
    frequency: dict[str, tuple[str, ...]]
    form: dict[str, tuple[str, ...]]
    route: dict[str, tuple[str, ...]]
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

    @field_validator("frequency")
    @classmethod
    def _every_frequency(cls, spelled: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if set(spelled) != set(FREQUENCIES):
            raise ValueError(f"expected spellings of exactly: {', '.join(FREQUENCIES)}")
        return spelled


@lru_cache(maxsize=1)
def note_houses() -> dict[str, NotesHouse]:
    """Return every house by its name, read once."""
    houses = [read_package_data(NotesHouse, Path(__file__).with_name(f"{name}.yaml")) for name in NAMES]
    return {house.name: house for house in houses}
