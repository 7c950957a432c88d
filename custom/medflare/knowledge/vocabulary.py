# SPDX-License-Identifier: Apache-2.0
"""The vocabulary that all sites share, so that one concept has one name everywhere.

It replaces pairwise alignment of graphs: each site maps its own words to concepts, and nothing is compared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from medflare.core.errors import DataError
from medflare.knowledge.triples import canonical

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(\w*)')
_ESCAPED = re.compile(r"\\(.)")
_KEEP_S = ("ss", "us", "is", "os")
SAME = ("EXACT", "")
"""Scopes of OBO synonyms that mean the concept itself; BROAD, NARROW and RELATED ones do not."""


class ConceptMention(NamedTuple):
    """A concept in a text: code points start … end − 1."""

    start: int
    end: int
    concept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Concept:
    """One term of an ontology; `names` begins with the preferred one, `parents` are ids."""

    concept_id: str
    names: tuple[str, ...]
    parents: tuple[str, ...] = ()


def read_obo(file: Path) -> list[Concept]:
    """Return the terms of an OBO 1.2 or 1.4 file that are not obsolete; DataError names file and line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as an OBO file ({type(error).__name__}).") from None
    concepts = [concept for lines in _stanzas(text) if (concept := _concept(lines, file)) is not None]
    if not concepts:
        raise DataError(f"{file}: holds no [Term] with id and name; expected an ontology in OBO format.")
    return concepts


def _stanzas(text: str) -> Iterator[list[tuple[int, str, str]]]:
    """Yield (line number, tag, value) of each [Term]."""
    lines: list[tuple[int, str, str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("["):
            if lines:
                yield lines
            lines = [] if line.strip() == "[Term]" else None
        elif lines is not None and ": " in line:
            tag, value = line.split(": ", 1)
            lines.append((number, tag, value.strip()))
    if lines:
        yield lines


def _concept(lines: list[tuple[int, str, str]], file: Path) -> Concept | None:
    values: dict[str, list[str]] = {}
    for number, tag, value in lines:
        if tag == "synonym":
            quoted = _QUOTED.match(value)
            if quoted is None:
                raise DataError(f"{file}, line {number}: synonym without a quoted text: {value[:60]}")
            if quoted[2] not in SAME:
                continue
            value = _ESCAPED.sub(r"\1", quoted[1])
        values.setdefault(tag, []).append(value.split(" ! ")[0] if tag == "is_a" else value)
    if values.get("is_obsolete") == ["true"] or "id" not in values or "name" not in values:
        return None
    names = tuple(dict.fromkeys([values["name"][0], *values.get("synonym", ())]))
    return Concept(concept_id=values["id"][0], names=names, parents=tuple(values.get("is_a", ())))


def read_table(file: Path) -> list[Concept]:
    """Return the rows of a tab-separated table with columns id and label; rows of one id are synonyms.

    Raises DataError that names file and line.
    """
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            table = csv.DictReader(opened, delimiter="\t")
            rows, columns = list(table), list(table.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as a table of concepts ({type(error).__name__}).") from None
    if not rows or [columns.count(name) for name in ("id", "label")] != [1, 1]:
        raise DataError(
            f"{file}: expected a first line with the columns id and label, each once, and tabs between them."
        )
    names: dict[str, list[str]] = {}
    for number, row in enumerate(rows, 2):
        if not row["id"] or not row["label"]:
            raise DataError(f"{file}, line {number}: id or label is empty.")
        names.setdefault(row["id"], []).append(row["label"])
    return [Concept(concept_id=key, names=tuple(dict.fromkeys(synonyms))) for key, synonyms in names.items()]


def read_concepts(files: Iterable[Path]) -> list[Concept]:
    """Return the concepts of several files, each an OBO file or a table (`.tsv`)."""
    return [
        concept
        for file in files
        for concept in (read_table(file) if file.suffix == ".tsv" else read_obo(file))
    ]


def words_of(text: str) -> list[tuple[str, int, int]]:
    """Return (folded word, start, end): canonical, and without the s of a plural."""
    return [(_singular(canonical(match[0])), *match.span()) for match in _WORD.finditer(text)]


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(_KEEP_S):
        return f"{word[:-3]}y" if word.endswith("ies") and len(word) > 4 else word[:-1]
    return word


class Vocabulary:
    """Finds concepts by their names.

    Args:
        concepts: where two share a name, the first one has it.
        shortest: names with fewer letters are left out: "CA" is a state, an atom and a disease.
    """

    def __init__(self, concepts: Iterable[Concept], shortest: int = 3) -> None:
        self.concepts: dict[str, Concept] = {}
        self._named: dict[tuple[str, ...], str] = {}
        for concept in concepts:
            self.concepts.setdefault(concept.concept_id, concept)
            for name in concept.names:
                key = tuple(word for word, _, _ in words_of(name))
                if sum(map(len, key)) >= shortest:
                    self._named.setdefault(key, concept.concept_id)
        self._longest = max(map(len, self._named), default=0)

    @property
    def named(self) -> Mapping[tuple[str, ...], str]:
        """Folded words of a name -> concept id."""
        return self._named

    def lookup(self, name: str) -> str | None:
        """Return the concept with this name or synonym, in any case, accent or plural."""
        return self._named.get(tuple(word for word, _, _ in words_of(name)))

    def mentions(self, text: str) -> list[ConceptMention]:
        """Return concepts in a text from left to right, the longest name first, none inside another."""
        words, mentions, at = words_of(text), list[ConceptMention](), 0
        while at < len(words):
            size = min(self._longest, len(words) - at)
            while size and (tuple(w for w, _, _ in words[at : at + size]) not in self._named):
                size -= 1
            if size:
                concept = self._named[tuple(w for w, _, _ in words[at : at + size])]
                mentions.append(ConceptMention(words[at][1], words[at + size - 1][2], concept))
            at += max(size, 1)
        return mentions


class Spelled(Vocabulary):
    """Finds the same names, and leaves each as it is spelled: the ablation without alignment."""

    def lookup(self, name: str) -> str | None:
        return None

    def mentions(self, text: str) -> list[ConceptMention]:
        mentions = super().mentions(text)
        return [
            mention._replace(concept=canonical(text[mention.start : mention.end])) for mention in mentions
        ]
