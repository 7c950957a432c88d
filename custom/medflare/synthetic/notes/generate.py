# SPDX-License-Identifier: Apache-2.0
"""Notes of a hospital: every patient has one, drawn from the profile's seed and the patient's number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from numpy.random import Generator

from medflare.data.records import Note
from medflare.synthetic.notes.grammar import Writer
from medflare.synthetic.notes.houses import NoteSection, NotesHouse
from medflare.synthetic.notes.markup import parse
from medflare.synthetic.notes.phrases import SHARED
from medflare.synthetic.notes.profiles import NotesProfile
from medflare.synthetic.seeds import random_stream

_STOP = re.compile(r"\.(\]*)\.")
_INNER = re.compile(r"(?<!Dr\.) (?<=\. )(?=[\[{])")
_FIRST = re.compile(r"^((?:\[[^|\[\]]*\|)*)([a-zé])")


def generate_notes(profile: NotesProfile, count: int) -> Iterator[Note]:
    """Yield a note of each of `count` patients; note k is the same whatever `count` is.

    The split is "", so that the cohort assigns one.
    """
    for index in range(count):
        rng = random_stream(profile.seed, index)
        text, entities, relations = parse(_written(profile, rng))
        patient = f"{profile.name}-n{profile.seed}-{index:05d}"
        yield Note(
            note_id=f"{patient}-1",
            text=text,
            patient_id=patient,
            split="",
            entities=entities,
            relations=relations,
        )


def _written(profile: NotesProfile, rng: Generator) -> str:
    """Return the markup of a note, section by section."""
    house = profile.house
    writer = Writer(profile, {**SHARED, **house.rules}, rng)
    parts = [
        _section(writer, house, section, f"s{number}")
        for number, section in enumerate(house.sections)
        if writer.chance(section.share)
    ]
    markup = house.between.join(parts)
    for american, british in house.spelling.items():
        markup = markup.replace(american, british)
        markup = markup.replace(american.capitalize(), british.capitalize())
    return markup


def _section(writer: Writer, house: NotesHouse, section: NoteSection, key: str) -> str:
    count = int(writer.rng.integers(section.least, section.most + 1))
    written: list[str] = []
    patterns: set[str] = set()
    for number in range(count):
        rule = section.rules[min(number, len(section.rules) - 1)]
        pattern = writer.pick([p for p in house.rules[rule] if section.listed or p not in patterns])
        patterns.add(pattern)
        sentences = [writer.expand(part, f"{key}.{number}") for part in _INNER.split(pattern)]
        if house.capital:
            sentences = [_FIRST.sub(lambda match: match[1] + match[2].upper(), part) for part in sentences]
        written.append(_STOP.sub(r".\1", " ".join(" ".join(sentences).split())))
    if section.listed:
        body = "\n".join(f"{number + 1}. {sentence}" for number, sentence in enumerate(written))
        return f"{section.heading}\n{body}" if section.heading else body
    heading = f"{section.heading}{house.glue}" if section.heading else ""
    return heading + " ".join(written)
