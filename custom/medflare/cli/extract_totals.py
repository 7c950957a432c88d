# SPDX-License-Identifier: Apache-2.0
"""Totals of one call of `medflare extract`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medflare.data.records import Note
    from medflare.tasks.extraction.predictor import NotePrediction


@dataclass(slots=True)
class ExtractionTotals:
    """Counts over the notes of one call.

    Attributes:
        notes: how many were read.
        entities, modifiers: type -> how many were extracted.
        links: between modifiers and entities.
        outputs: texts that the model wrote.
        faults: sort of fault -> outputs that have it.
        identifiers: kind -> how many notes' identifiers stand in what is written, the notes' texts included.
        replaced: kind -> those in whose place surrogates stand (`deidentify: replace` of a site).
        left_out: files that could not be read: file, reason, detail.
        files: files that were written.
    """

    notes: int = 0
    entities: Counter[str] = field(default_factory=Counter)
    modifiers: Counter[str] = field(default_factory=Counter)
    links: int = 0
    outputs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    identifiers: Counter[str] = field(default_factory=Counter)
    replaced: Mapping[str, int] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def add(self, note: Note, prediction: NotePrediction) -> None:
        """Count what was extracted from a note."""
        from medflare.core.inventory import ENTITY_TYPES
        from medflare.identifiers.rules import RuleDetector

        self.notes += 1
        for entity in note.entities:
            (self.entities if entity.label in ENTITY_TYPES else self.modifiers)[entity.label] += 1
        self.links += len(note.relations)
        self.outputs += prediction.outputs
        self.faults.update(+prediction.faults)
        self.identifiers.update(item.kind for item in RuleDetector().find(note.text))

    def as_json(self) -> dict[str, Any]:
        """Return plain types, the most frequent types first."""
        return {
            "notes": self.notes,
            "left_out": self.left_out,
            "entities": dict(self.entities.most_common()),
            "modifiers": dict(self.modifiers.most_common()),
            "links": self.links,
            "outputs": self.outputs,
            "faults": dict(self.faults.most_common()),
            "identifiers": dict(self.identifiers.most_common()),
            "identifiers_replaced": dict(self.replaced),
            "files": [str(path) for path in self.files],
        }
