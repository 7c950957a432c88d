# SPDX-License-Identifier: Apache-2.0
"""A source's notes in the words of the inventory, within the site's tasks, with every loss counted.

A relation is a modifier of one of the four heads. What a corpus links otherwise is not a
fault of the file; it is left out and counted, and so is what the label map or the task mask takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES, MODIFIERS, TYPES
from medflare.data.counts import AnnotationCounts
from medflare.data.readers.annotated import describe_entity
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.label_maps import LabelMap, mapping_of, targets


def map_source_notes(source: SourceRecords, config: CohortConfig) -> AnnotationCounts:
    """Replace `source.notes` by what a learner may use; a note with an unknown type is skipped."""
    counts = AnnotationCounts(lines_left_out=Counter(source.left_out))
    mapping = mapping_of(config.label_map)
    kept = []
    native = {e.label for note in source.notes for e in note.entities if e.label in TYPES}
    for note in source.notes:
        with source.skipping(note.note_id):
            mapped = map_note(note, mapping, counts, source.places.get(note.note_id, note.note_id))
            kept.append(mask_note(mark_coverage(mapped, config, native), counts))
    source.notes = kept
    return counts


def unknown_labels(note: Note, mapping: LabelMap) -> set[str]:
    """Return the labels of a note's entities that are neither mapped nor types of the inventory."""
    return {e.label for e in note.entities if e.label not in mapping and e.label not in TYPES}


def map_note(note: Note, mapping: LabelMap, counts: AnnotationCounts, where: str) -> Note:
    """Return the note with types of the inventory only; RecordError names labels neither mapped nor types."""
    if unknown := unknown_labels(note, mapping):
        raise _unknown_types({e.label: e for e in reversed(note.entities) if e.label in unknown}, where)
    entities = []
    for entity in note.entities:
        counts.source_entities[entity.label] += 1
        label = mapping.get(entity.label, entity.label)
        if label is None:
            counts.entities_dropped[entity.label] += 1
        else:
            entities.append(replace(entity, label=label))
    relations = tuple(_inventory_links(note, entities, mapping, counts))
    return replace(note, entities=tuple(entities), relations=relations)


def _unknown_types(unknown: dict[str, Entity], where: str) -> RecordError:
    first = min(unknown.values(), key=lambda entity: entity.spans)
    others = sorted(set(unknown) - {first.label})
    more = f", nor are {', '.join(others)}" if others else ""
    detail = (
        f"{where}: {describe_entity(first)} is '{first.label}', which is no type of the inventory{more}; "
        "say in 'label_map' what it is, or null to leave it out"
    )
    return RecordError("unknown type", detail)


def _inventory_links(
    note: Note, entities: list[Entity], mapping: LabelMap, counts: AnnotationCounts
) -> Iterator[Relation]:
    """Yield the links from a head to a modifier it may have, turned where the corpus links the other way."""
    types = {entity.entity_id: entity.label for entity in entities}
    pairs: set[tuple[str, str]] = set()
    for relation in note.relations:
        counts.source_relations[relation.label] += 1
        left_out = relation.label in mapping and mapping[relation.label] is None
        turned = replace(relation, head=relation.tail, tail=relation.head)
        fitting = [link for link in (relation, turned) if _in_inventory(link, types)]
        if left_out or not fitting:
            counts.relations_outside[relation.label] += 1
        elif (ends := (fitting[0].head, fitting[0].tail)) in pairs:
            counts.relations_repeated[relation.label] += 1
        else:
            pairs.add(ends)
            yield fitting[0]


def _in_inventory(relation: Relation, types: dict[str, str]) -> bool:
    return types.get(relation.tail) in MODIFIERS.get(types.get(relation.head, ""), ())


def mark_coverage(note: Note, config: CohortConfig, native: Set[str] = frozenset()) -> Note:
    """Return the note with what its annotation covers by the site, else the label map, else the reader.

    A map covers what it leads to; one of the site's own also what its notes name in the inventory's words.

    Where no modifier (no head) was looked for, the annotation does not cover "re" ("ner"), whatever the
    site's tasks: an unmarked note would teach that there is nothing to mark.
    """
    annotated = config.annotated
    if annotated is None and config.label_map:
        led = set(targets(mapping_of(config.label_map)))
        if not isinstance(config.label_map, str):
            led |= native
        annotated = tuple(name for name in TYPES if name in led)
    if annotated is None:
        annotated = note.annotated
    looked_for = set(TYPES if annotated is None else annotated)
    needed: dict[str, Any] = {"ner": ENTITY_TYPES, "re": MODIFIER_TYPES}
    tasks = tuple(
        task for task in note.tasks if task in config.tasks and not looked_for.isdisjoint(needed[task])
    )
    return replace(note, annotated=annotated, tasks=tasks)


def mask_note(note: Note, counts: AnnotationCounts) -> Note:
    """Return the note without the annotation that none of its tasks uses; "re" keeps the heads."""
    if "re" in note.tasks:
        return note
    wanted = ENTITY_TYPES if "ner" in note.tasks else ()
    entities = tuple(entity for entity in note.entities if entity.label in wanted)
    counts.masked.update(entity.label for entity in note.entities if entity.label not in wanted)
    if note.relations:
        counts.masked["relations"] += len(note.relations)
    return replace(note, entities=entities, relations=())
