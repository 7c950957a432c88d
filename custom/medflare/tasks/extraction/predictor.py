# SPDX-License-Identifier: Apache-2.0
"""Notes in, predicted entities and modifiers out: a model is asked window by window.

Modifiers are predicted in two ways: of the gold heads, comparable with the paper, and end to end of the heads
that the model predicted itself. A head that is both gold and predicted is asked about once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from medflare.core.inventory import ENTITY_TYPES
from medflare.data.notes.windows import NoteWindows, split_note
from medflare.data.notes.word_offsets import WordOffsets
from medflare.data.records import Entity, Note
from medflare.evaluation.extraction_predictions import PARSE_FAILURE, EntityMention, Link, ScoredDocument
from medflare.tasks.extraction.examples import Example, LostMarks, head_question, ner_example, re_examples
from medflare.tasks.extraction.markup import Mark, ParsedOutput, keep_outermost

NESTED = "nested entity"
Heads = Literal["none", "predicted", "gold", "both"]
"""Heads of which modifiers are predicted."""


@dataclass(slots=True)
class NotePrediction:
    """Prediction of a model for one note; links are None where it was not asked for them.

    Attributes:
        outputs: how many outputs the model gave.
        faults: kind -> in how many outputs it occurred.
    """

    entities: list[EntityMention] = field(default_factory=list)
    links_gold_heads: list[Link] | None = None
    links_end_to_end: list[Link] | None = None
    outputs: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class WindowHeads:
    """The words of one window and its heads.

    Attributes:
        note: index of the window's note.
        predicted: heads that the model predicted.
        gold: each gold head as the words to mark, and as annotated in the note.
    """

    note: int
    source: WordOffsets
    predicted: list[Mark] = field(default_factory=list)
    gold: list[tuple[Mark, EntityMention]] = field(default_factory=list)


class Predictor(ABC):
    """Predicts entities and modifiers of notes, whatever kind of model it is.

    Args:
        sentences: of a window; room: most tokens of its text.
    """

    def __init__(self, sentences: int, room: int) -> None:
        self.sentences, self.room = sentences, room

    @abstractmethod
    def count_tokens(self, text: str) -> int:
        """Return the length of a text in the model's tokens; a longer text is never shorter."""

    @abstractmethod
    def predict(self, examples: Sequence[Example]) -> list[ParsedOutput]:
        """Return one parsed output for each example; the examples' gold answers are not used."""

    def windows(self, note: Note) -> NoteWindows:
        """Return the windows of an annotated note to learn from, none longer than `room`."""
        return split_note(note, self.sentences, self.room, self.count_tokens)

    def blind_windows(self, note: Note) -> NoteWindows:
        """Return the windows of a note to extract from: its annotation does not move their borders."""
        return split_note(note, self.sentences, self.room, self.count_tokens, keep=())

    def extract(self, notes: Sequence[Note], heads: Heads = "predicted") -> list[NotePrediction]:
        """Return the prediction of each note, with modifiers of the heads that `heads` names."""
        windows = [(i, window) for i, note in enumerate(notes) for window in self.blind_windows(note).windows]
        predictions = [NotePrediction() for _ in notes]
        examples = [ner_example(window, notes[i].annotated) for i, window in windows]
        places = [WindowHeads(i, example.source) for (i, _), example in zip(windows, examples, strict=True)]
        for place, output in zip(places, self.predict(examples), strict=True):
            # entities are one flat layer, so a nested one is dropped and counted as a fault
            place.predicted = keep_outermost(output.marks)
            output.faults[NESTED] += len(place.predicted) < len(output.marks)
            _count(predictions[place.note], output)
            predictions[place.note].entities += [_mention(mark, place.source) for mark in place.predicted]
        if heads in ("gold", "both"):
            for (_, window), place in zip(windows, places, strict=True):
                place.gold = _gold_heads(window.entities, place.source)
        if heads != "none":
            self._predict_modifiers(predictions, notes, places, heads)
        return predictions

    def _predict_modifiers(
        self,
        predictions: Sequence[NotePrediction],
        notes: Sequence[Note],
        places: Sequence[WindowHeads],
        heads: Heads,
    ) -> None:
        """Predict the modifiers of every wanted head once, and link them to gold and predicted heads."""
        for prediction in predictions:
            prediction.links_gold_heads = [] if heads != "predicted" else None
            prediction.links_end_to_end = [] if heads != "gold" else None
        wanted, examples = [], []
        for place in places:
            note = notes[place.note]
            for mark in _heads_to_ask(place, heads):
                example = head_question(note.note_id, place.source, mark, annotated=note.annotated)
                if example.types:  # of some heads the annotators looked for no modifiers
                    wanted.append((place, mark))
                    examples.append(example)
        modifiers: dict[tuple[int, Mark], list[EntityMention]] = defaultdict(list)
        for (place, mark), output in zip(wanted, self.predict(examples), strict=True):
            _count(predictions[place.note], output)
            modifiers[id(place), mark] = [_mention(mark, place.source) for mark in output.marks]
        for place in places:
            gold = predictions[place.note].links_gold_heads
            end_to_end = predictions[place.note].links_end_to_end
            if gold is not None:
                gold += [Link(head, m) for mark, head in place.gold for m in modifiers[id(place), mark]]
            if end_to_end is not None:
                predicted = [(mark, _mention(mark, place.source)) for mark in place.predicted]
                end_to_end += [Link(head, m) for mark, head in predicted for m in modifiers[id(place), mark]]

    def documents(
        self, notes: Sequence[Note], site: str, adapter: Literal["generic", "personalised", "none"]
    ) -> list[ScoredDocument]:
        """Return annotated notes with texts and predictions, for a file that stays at the site.

        Modifiers are predicted only where they can be scored: in notes that are annotated with them.
        """
        linked = iter(self.extract([note for note in notes if "re" in note.tasks], "both"))
        plain = iter(self.extract([note for note in notes if "re" not in note.tasks], "none"))
        predictions = [next(linked if "re" in note.tasks else plain) for note in notes]
        return [
            _scored(note, prediction, site, adapter)
            for note, prediction in zip(notes, predictions, strict=True)
        ]


def training_examples(
    predictor: Predictor, notes: Iterable[Note], losses: LostMarks | None = None
) -> tuple[list[Example], Counter[str]]:
    """Return prompts and answers of annotated notes within each note's tasks, and counts of what windows cut.

    Args:
        losses: counts the marks that the examples cannot express.
    """
    examples: list[Example] = []
    cut: Counter[str] = Counter()
    for note in notes:
        windowed = predictor.windows(note)
        cut["entity cut by windows"] += windowed.entities_cut
        cut["relation across windows"] += windowed.relations_lost
        for window in windowed.windows:
            examples += [ner_example(window, note.annotated, losses)] if "ner" in note.tasks else []
            examples += re_examples(window, note.annotated, losses) if "re" in note.tasks else []
    return examples, cut


def _count(prediction: NotePrediction, output: ParsedOutput) -> None:
    """Count an output and its faults, each kind once."""
    prediction.outputs += 1
    prediction.faults.update(fault for fault, count in output.faults.items() if count)
    prediction.faults[PARSE_FAILURE] += output.failed


def _heads_to_ask(place: WindowHeads, heads: Heads) -> list[Mark]:
    """Return the heads of a window to ask about, each once, in the order of the text."""
    predicted = place.predicted if heads != "gold" else []
    return sorted({*predicted, *(mark for mark, _ in place.gold)}, key=lambda m: (m.words, m.label))


def _frozen(links: list[Link] | None) -> tuple[Link, ...] | None:
    return None if links is None else tuple(links)


def _mention(mark: Mark, source: WordOffsets) -> EntityMention:
    return EntityMention(mark.label, (source.span(mark.words),))


def _gold_heads(entities: Iterable[Entity], source: WordOffsets) -> list[tuple[Mark, EntityMention]]:
    """Return each gold head as the words to mark, and as annotated."""
    heads = []
    for entity in entities:
        if entity.label not in ENTITY_TYPES:
            continue
        mention = EntityMention(entity.label, entity.spans)
        words = source.cover(mention.spans[0][0], mention.spans[-1][1])
        if words is not None:
            heads.append((Mark(mention.label, words), mention))
    return heads


def _scored(
    note: Note,
    prediction: NotePrediction,
    site: str,
    adapter: Literal["generic", "personalised", "none"],
) -> ScoredDocument:
    mentions = {entity.entity_id: EntityMention(entity.label, entity.spans) for entity in note.entities}
    return ScoredDocument(
        note_id=note.note_id,
        patient_id=note.patient_id,
        site=site,
        adapter=adapter,
        tasks=note.tasks,
        annotated=note.annotated,
        gold_entities=tuple(m for m in mentions.values() if m.label in ENTITY_TYPES),
        gold_links=tuple(Link(mentions[r.head], mentions[r.tail]) for r in note.relations),
        predicted_entities=tuple(prediction.entities),
        links_gold_heads=_frozen(prediction.links_gold_heads),
        links_end_to_end=_frozen(prediction.links_end_to_end),
        outputs=prediction.outputs,
        faults={fault: count for fault, count in prediction.faults.items() if count},
        text=note.text,
    )
