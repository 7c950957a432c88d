# SPDX-License-Identifier: Apache-2.0
"""What a rule says of itself, read from its class: for listings and for docs/reference/rules.md."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from medflare.aggregation import rule_class

_ID = re.compile(r"\b(MRG|TAR|ML|VG|DD|BL)-(\d+)(?: to \1-(\d+))?")
_BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_KINDS = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "name",
    "NoneType": "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where something is from: papers, sections of algorithms.md, ids of its resolutions."""

    paper: str
    sections: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """One of a rule's settings. allowed: in words; says: what it does, from the docstring."""

    name: str
    default: Any
    allowed: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """One rule of the table; the fields of `aggregation.base.AggregationRule` have the same meaning."""

    name: str
    needs: str
    sum_with: dict[str, Any]
    instead: str
    streams: bool
    summary: str
    source: Source
    settings: tuple[SettingFacts, ...]


def rule_facts(name: str) -> RuleFacts:
    """Facts of a rule with its default settings; ConfigError that lists the rules otherwise."""
    kind = rule_class(name)
    return RuleFacts(
        name=name,
        needs=kind.needs,
        sum_with=dict(kind.sum_with),
        instead=kind.instead,
        streams=kind.streams,
        summary=kind.summary,
        source=source_of(kind.source),
        settings=tuple(_settings(kind)),
    )


def source_of(text: str) -> Source:
    """`paper; algorithms.md 1.1; ML-1, VG-2 to VG-5` in its parts."""
    parts = [part.strip() for part in text.split(";")]
    sections = ", ".join(part.removeprefix("algorithms.md ") for part in parts if "algorithms.md" in part)
    paper = [part for part in parts if "algorithms.md" not in part and not _ID.match(part)]
    return Source(paper="; ".join(paper), sections=sections, ids=tuple(_ids(text)))


def _ids(text: str) -> Iterator[str]:
    for letters, first, last in _ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letters}-{number}"


def _settings(kind: type) -> Iterator[SettingFacts]:
    hints, said = get_type_hints(kind.__init__, include_extras=True), _described(kind)  # type: ignore[misc]
    for name, parameter in inspect.signature(kind).parameters.items():
        yield SettingFacts(
            name=name, default=parameter.default, allowed=allowed(hints[name]), says=said.get(name, "")
        )


def allowed(hint: Any) -> str:
    """The values a type hint lets through, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(str(value) for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(allowed(arg) for arg in args)
    if origin is Annotated:
        return f"{allowed(args[0])}, {' and '.join(limits(hint))}"
    return _KINDS[hint.__name__]


def limits(hint: Any) -> list[str]:
    """The bounds of an annotated number, in words."""
    found = [limit for item in get_args(hint)[1:] for limit in item.metadata]
    return [words.format(getattr(x, key)) for x in found for key, words in _BOUNDS.items() if hasattr(x, key)]


def _described(kind: type) -> dict[str, str]:
    """Setting -> its entry under `Args:` in the docstrings of a class and those it builds on."""
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "") + "\n"
        block = re.search(r"^Args:\n((?: {4}.*\n|\n(?= {4}))+)", text, re.MULTILINE)
        entries = re.findall(r"^ {4}(\w+): ((?:.+\n)(?: {8}.+\n)*)", block[1] if block else "", re.MULTILINE)
        said |= {name: " ".join(words.split()) for name, words in entries}
    return said
