# SPDX-License-Identifier: Apache-2.0
"""Annotated notes as records to learn from, whichever model learns: their scores, and D_v (ML-15).

A digest identifies D_v, so that the server can compare sites without seeing a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from medflare.core.sample_drafts import offer_drafts
from medflare.data.notes.word_offsets import locate_words
from medflare.data.records import Note
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from medflare.evaluation.extraction_predictions import EntityMention
from medflare.learners.text_task.validation_texts import Known
from medflare.tasks.extraction.evaluation import NOTES
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.scoring import TextRecords


class LearnsFromNotes:
    """The part of a `RecordsLearner` that is about notes."""

    RECORDS: ClassVar[TextRecords[Any, Any, Any]] = NOTES
    site: str
    predictor: Predictor

    @staticmethod
    def known(record: Note) -> Known:
        """Return a note by its words: how words and punctuation are set apart does not count."""
        return Known(record.note_id, record.split, " ".join(locate_words(record.text).words))

    @staticmethod
    def facts(record: Note) -> list[Any]:
        """Return text, annotation and what it covers; ids and the order of marks do not count."""
        marks = {entity.entity_id: [entity.label, entity.spans] for entity in record.entities}
        links = [[link.label, marks[link.head], marks[link.tail]] for link in record.relations]
        return [record.text, sorted(record.tasks), sorted(marks.values()), sorted(links), record.annotated]

    def quality(self, records: Sequence[Note]) -> dict[str, float]:
        """Return point scores on a few notes, for the curves of a run."""
        documents = self.predictor.documents(records, self.site, "generic")
        offer_drafts(
            [document.note_id for document in documents],
            [
                _entity_words(record.text, document.gold_entities)
                for record, document in zip(records, documents, strict=True)
            ],
            [
                _entity_words(record.text, document.predicted_entities or ())
                for record, document in zip(records, documents, strict=True)
            ],
        )
        return quick_extraction_metrics(documents)


def _entity_words(text: str, entities: Sequence[EntityMention]) -> str:
    """Return the words of entities with their types, in the order of the note."""
    found = sorted(entities, key=lambda entity: entity.spans)
    words = (" ".join(text[start:end] for start, end in entity.spans) for entity in found)
    return (
        "; ".join(f"{word} [{entity.label}]" for word, entity in zip(words, found, strict=True)) or "nothing"
    )
