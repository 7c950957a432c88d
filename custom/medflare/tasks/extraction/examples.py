# SPDX-License-Identifier: Apache-2.0
"""Training and test examples of extraction: what is asked of a window, and the answer of its annotation.

Named entity recognition marks the four entity types. Relation extraction is modifier tagging: one example
per head, the head marked in the question, only its modifiers marked in the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from medflare.core.inventory import ENTITY_TYPES, MODIFIERS
from medflare.data.notes.windows import Window
from medflare.data.notes.word_offsets import WordOffsets, locate_words
from medflare.data.records import Entity, Relation
from medflare.tasks.extraction.markup import Mark, drop_crossing, keep_outermost

NER, RE = "ner", "re"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One prompt about a text and its gold answer.

    Attributes:
        task: NER or RE; head: the marked head of an RE question, else None.
        answer: marks of the gold answer; () where nothing is annotated, or nothing is known.
        types: what an answer may contain.
    """

    note_id: str
    task: str
    source: WordOffsets
    head: Mark | None = None
    answer: tuple[Mark, ...] = ()
    types: tuple[str, ...] = ENTITY_TYPES


@dataclass(slots=True)
class LostMarks:
    """Gold marks that an example cannot express: kind -> how many."""

    counts: Counter[str] = field(default_factory=Counter)


def ner_example(
    window: Window, annotated: Sequence[str] | None = None, losses: LostMarks | None = None
) -> Example:
    """Return the entities of a window as one flat layer, the outermost of nested ones.

    Only the types that the annotators looked for are asked for; None for all.
    """
    types = tuple(t for t in ENTITY_TYPES if annotated is None or t in annotated) or ENTITY_TYPES
    source = locate_words(window.text, window.start)
    marks = [m for e in window.entities if e.label in types for m in _mark(e, source, losses)]
    flat = keep_outermost(marks)
    _count(losses, "nested or crossing entity", len(marks) - len(flat))
    return Example(note_id=window.note_id, task=NER, source=source, answer=tuple(flat), types=types)


def re_examples(
    window: Window, annotated: Sequence[str] | None = None, losses: LostMarks | None = None
) -> list[Example]:
    """Return one example for each head of a window, with or without modifiers, in the order of the text.

    Only modifiers that the annotators looked for are asked for, None for all; heads without any such are
    left out.
    """
    source = locate_words(window.text, window.start)
    tails = {entity.entity_id: entity for entity in window.entities}
    examples = []
    for head in sorted((e for e in window.entities if e.label in ENTITY_TYPES), key=lambda e: e.spans):
        for mark in _mark(head, source, losses):
            linked = _modifiers(head, window.relations, tails)
            marks = [m for e in linked for m in _mark(e, source, losses)]
            kept = drop_crossing(marks)
            _count(losses, "crossing modifier", len(set(marks)) - len(kept))
            examples.append(head_question(window.note_id, source, mark, tuple(kept), annotated))
    return [example for example in examples if example.types]


def head_question(
    note_id: str,
    source: WordOffsets,
    head: Mark,
    answer: tuple[Mark, ...] = (),
    annotated: Sequence[str] | None = None,
) -> Example:
    """Return the RE question about one head, gold or predicted; `types` is empty if nothing can be asked."""
    types = tuple(t for t in MODIFIERS[head.label] if annotated is None or t in annotated)
    return Example(note_id=note_id, task=RE, source=source, head=head, answer=answer, types=types)


def _modifiers(head: Entity, relations: Iterable[Relation], tails: dict[str, Entity]) -> list[Entity]:
    """Return the entities linked to `head` that the inventory allows it."""
    linked = [tails[r.tail] for r in relations if r.head == head.entity_id and r.tail in tails]
    return [entity for entity in linked if entity.label in MODIFIERS[head.label]]


def _mark(entity: Entity, source: WordOffsets, losses: LostMarks | None) -> list[Mark]:
    """Return the words from an entity's first to its last character, also of a discontinuous one."""
    start, end = min(s for s, _ in entity.spans), max(e for _, e in entity.spans)
    words = source.cover(start, end)
    if words is None:
        _count(losses, "entity without words", 1)
        return []
    _count(losses, "border inside a word", source.span(words) != (start, end))
    _count(losses, "discontinuous", len(entity.spans) > 1)
    return [Mark(entity.label, words)]


def _count(losses: LostMarks | None, loss: str, number: int) -> None:
    if losses is not None and number:
        losses.counts[loss] += number
