# SPDX-License-Identifier: Apache-2.0
"""What a style of documentation consists of: sections, frames and how it spells doses, routes and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


def spelled(*words: str) -> dict[str, tuple[str, ...]]:
    """Frequency class -> spellings of a house, from strings with "/" between alternatives."""
    return {name: tuple(word.split("/")) for name, word in zip(FREQUENCIES, words, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a note: `least` to `most` sentences drawn from the rules, shown with probability `share`."""

    heading: str
    rules: tuple[str, ...]
    least: int = 1
    most: int = 2
    share: float = 1.0
    listed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A style of documentation.

    Attributes:
        sections: of every note, in order; `glue` stands between a heading and its sentences.
        rules: rule -> patterns of `grammar.Writer`; they come before the shared ones of `phrases`.
        frequency, form, route: how the classes of the drug lexicon are spelled.
        spelling: replacements over the whole text ("anemia" -> "anaemia"); capital: sentences begin with one.
    """

    name: str
    sections: tuple[Section, ...]
    rules: Mapping[str, Sequence[str]]
    frequency: Mapping[str, tuple[str, ...]]
    form: Mapping[str, tuple[str, ...]]
    route: Mapping[str, tuple[str, ...]]
    glue: str = " "
    between: str = "\n"
    spelling: Mapping[str, str] = field(default_factory=dict)
    capital: bool = True


def frames(text: str) -> dict[str, tuple[str, ...]]:
    """Rules from a text: a name on its own line, then its patterns, begun by "- " or, if frequent, "* "."""
    rules: dict[str, list[str]] = {}
    weights: dict[str, list[int]] = {}
    name = ""
    for line in (line.strip() for line in text.strip().splitlines()):
        if line[:2] in ("- ", "* ") or line == "-":
            rules[name] += [line[2:]]
            weights[name] += [3 if line[0] == "*" else 1]
        elif line.endswith(":") and line[:-1].isidentifier():
            name = line[:-1]
            rules[name], weights[name] = [], []
        elif line:
            rules[name][-1] += f" {line}"
    return {
        name: tuple(p for p, w in zip(patterns, weights[name], strict=True) for _ in range(w))
        for name, patterns in rules.items()
    }
