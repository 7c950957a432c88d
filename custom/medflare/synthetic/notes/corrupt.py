# SPDX-License-Identifier: Apache-2.0
"""Simulation of careless annotators: valid records with a share of the labels wrong.

For the study of influence weights (Fed-MedLoRA+), which should give such a site less say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from numpy.random import Generator

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.data.records import Entity, Note, Relation
from medflare.synthetic.seeds import random_stream

_WORD = re.compile(r"\S+")


def corrupt_labels(notes: Iterable[Note], share: float, seed: int) -> list[Note]:
    """Return the notes with a share of their entities and relations wrong; offsets and ids stay valid.

    A wrong entity has another type of its kind (head or modifier), shifted boundaries, or is dropped together
    with its relations, in equal parts. A wrong relation hangs on another head or names another modifier.

    Args:
        share: 0 to 1, of the entities and again of the relations that are left.

    Raises:
        ValueError: `share` is outside 0 .. 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; expected 0 to 1")
    rng = random_stream(seed, 9)
    return [_corrupted(note, share, rng) for note in notes]


def _corrupted(note: Note, share: float, rng: Generator) -> Note:
    entities = []
    for entity in note.entities:
        corrupted: Entity | None = entity
        if rng.random() < share:
            corrupted = _wrong_entity(entity, note.text, int(rng.integers(3)), rng)
        if corrupted is not None:
            entities.append(corrupted)
    left = {entity.entity_id for entity in entities}
    relations = [r for r in note.relations if {r.head, r.tail} <= left]
    wrong = [_wrong_relation(r, entities, rng) if rng.random() < share else r for r in relations]
    unique = {(r.label, r.head, r.tail): r for r in wrong}
    return replace(note, entities=tuple(entities), relations=tuple(unique.values()))


def _wrong_entity(entity: Entity, text: str, fault: int, rng: Generator) -> Entity | None:
    if fault == 0:
        return None
    if fault == 1:
        types = ENTITY_TYPES if entity.label in ENTITY_TYPES else MODIFIER_TYPES
        others = [name for name in types if name != entity.label]
        return replace(entity, label=others[int(rng.integers(len(others)))])
    return replace(entity, spans=(_shifted(entity, text, rng),))


def _shifted(entity: Entity, text: str, rng: Generator) -> tuple[int, int]:
    """Return the span with a word more or less at one end; the words of the text are its grid."""
    start, end = entity.spans[0][0], entity.spans[-1][1]
    words = [match.span() for match in _WORD.finditer(text)]
    before = [s for s, _ in words if s < start]
    after = [e for _, e in words if e > end]
    inner = [s for s, _ in words if start < s < end]
    options = [(before[-1], end)] if before else []
    options += [(start, after[0])] if after else []
    options += [(inner[0], end)] if inner else []
    return options[int(rng.integers(len(options)))] if options else (start, max(start + 1, end - 1))


def _wrong_relation(relation: Relation, entities: list[Entity], rng: Generator) -> Relation:
    """Return another head, or another modifier where the note has no other head."""
    heads = [e.entity_id for e in entities if e.label in ENTITY_TYPES and e.entity_id != relation.head]
    tails = [e.entity_id for e in entities if e.label in MODIFIER_TYPES and e.entity_id != relation.tail]
    if heads and (rng.random() < 0.5 or not tails):
        return replace(relation, head=heads[int(rng.integers(len(heads)))])
    if tails:
        return replace(relation, tail=tails[int(rng.integers(len(tails)))])
    return relation
