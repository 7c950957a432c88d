# SPDX-License-Identifier: Apache-2.0
"""Notes in, marked notes out: asks a model window by window and brings answers back to the notes' offsets.

Two ways to modifiers: of the gold heads, comparable with the paper, and end to end of the heads the model
found itself (algorithms.md 4.4). A head that is both gold and found is asked about once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from medflare.cohort.inventory import ENTITY_TYPES
from medflare.cohort.records import Entity, Note
from medflare.cohort.windows import Windowed, split_note
from medflare.evaluation.extraction_predictions import PARSE_FAILURE, Link, Mention, ScoredDocument
from medflare.extraction.examples import Example, head_question, ner_example, re_examples
from medflare.extraction.markup import TRUNCATED, Mark, Reading, outermost
from medflare.extraction.prompts import Wording
from medflare.extraction.source import Source, source_of
from medflare.models.text_model import TextModel

NESTED = "nested entity"


@dataclass(slots=True)
class Answers:
    """What a model said of one note; links are None where it was not asked for them."""

    entities: list[Mention] = field(default_factory=list)
    links_gold_heads: list[Link] = field(default_factory=list)
    links_end_to_end: list[Link] = field(default_factory=list)
    outputs: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Place:
    """A window of a note: which note, and the window's words."""

    note: int
    source: Source


class Asker(ABC):
    """Asks a model about notes, whatever kind of model it is: how notes are cut, and what becomes of answers.

    Args:
        sentences: of a window; room: most tokens of its text.
    """

    def __init__(self, sentences: int, room: int) -> None:
        self.sentences, self.room = sentences, room

    @abstractmethod
    def tokens(self, text: str) -> int:
        """How long a text is to the model; a longer text is not shorter."""

    @abstractmethod
    def ask(self, examples: Sequence[Example]) -> list[Reading]:
        """One reading for each question."""

    def windows(self, note: Note) -> Windowed:
        """The windows of a note, none longer than `room`."""
        return split_note(note, self.sentences, self.room, self.tokens)

    def extract(
        self, notes: Sequence[Note], heads: Literal["found", "gold", "both"] = "found"
    ) -> list[Answers]:
        """Answers for each note; `heads` says of which heads modifiers are asked."""
        windows = [(i, window) for i, note in enumerate(notes) for window in self.windows(note).windows]
        answers = [Answers() for _ in notes]
        found: dict[Place, list[Mark]] = defaultdict(list)
        examples = [ner_example(window) for _, window in windows]
        places = [Place(i, example.source) for (i, _), example in zip(windows, examples, strict=True)]
        for place, reading in zip(places, self.ask(examples), strict=True):
            flat = outermost(reading.marks)
            reading.faults[NESTED] += len(flat) < len(reading.marks)
            self._note(answers[place.note], reading)
            found[place] = flat
            answers[place.note].entities += [_mention(mark, place.source) for mark in flat]
        gold: dict[Place, list[tuple[Mark, Mention]]] = defaultdict(list)
        if heads != "found":
            for (_, window), place in zip(windows, places, strict=True):
                gold[place] = _gold_heads(window.entities, place.source)
        wanted = {(p, m) for p, marks in found.items() for m in marks} if heads != "gold" else set()
        wanted |= {(place, mark) for place, pairs in gold.items() for mark, _ in pairs}
        self._modifiers(answers, notes, wanted, found if heads != "gold" else {}, gold)
        return answers

    def _modifiers(
        self,
        answers: Sequence[Answers],
        notes: Sequence[Note],
        wanted: set[tuple[Place, Mark]],
        found: dict[Place, list[Mark]],
        gold: dict[Place, list[tuple[Mark, Mention]]],
    ) -> None:
        """Asks for the modifiers of every wanted head and hangs them on gold and found heads."""
        order = sorted(wanted, key=lambda w: (w[0].note, w[0].source.starts, w[1].words, w[1].label))
        asked = [head_question(notes[place.note].note_id, place.source, mark) for place, mark in order]
        told: dict[tuple[Place, Mark], list[Mention]] = {}
        for key, reading in zip(order, self.ask(asked), strict=True):
            self._note(answers[key[0].note], reading)
            told[key] = [_mention(mark, key[0].source) for mark in reading.marks]
        for place, pairs in gold.items():
            for mark, head in pairs:
                links = [Link(head, modifier) for modifier in told[place, mark]]
                answers[place.note].links_gold_heads += links
        for place, marks in found.items():
            for mark in marks:
                head = _mention(mark, place.source)
                answers[place.note].links_end_to_end += [Link(head, m) for m in told[place, mark]]

    def _note(self, answers: Answers, reading: Reading) -> None:
        """Counts an output and its faults, each kind once."""
        answers.outputs += 1
        answers.faults.update(kind for kind, count in reading.faults.items() if count)
        answers.faults[PARSE_FAILURE] += reading.failed

    def documents(
        self, notes: Sequence[Note], site: str, adapter: Literal["generic", "personalised", "none"]
    ) -> list[ScoredDocument]:
        """Annotated notes beside what the model says, for `evaluation.extraction_metrics`."""
        answers = self.extract(notes, heads="both")
        return [_scored(note, found, site, adapter) for note, found in zip(notes, answers, strict=True)]


class Extractor(Asker):
    """A text model with its wording, and how notes are cut.

    Args:
        sentences: of a window; longest: most tokens of a question and its answer.
        batch: questions asked at once.
    """

    def __init__(
        self, model: TextModel, wording: Wording, sentences: int = 1, longest: int = 800, batch: int = 32
    ) -> None:
        self.model, self.wording, self.batch = model, wording, batch
        empty = Example(note_id="", task="ner", source=source_of(""))
        # a question needs its text once, an answer up to twice
        super().__init__(
            sentences, max((longest - len(model.prompt_ids([wording.question(empty)])[0])) // 3, 16)
        )

    def tokens(self, text: str) -> int:
        shown = source_of(text).text
        return len(self.model.backbone.tokenizer(shown, add_special_tokens=False)["input_ids"])

    def ask(self, examples: Sequence[Example]) -> list[Reading]:
        """One reading for each question; an answer that did not end in time is a fault."""
        questions = [self.wording.question(example) for example in examples]
        budgets = [2 * self.tokens(example.source.text) + 48 for example in examples]
        readings = []
        written = self.model.answer(questions, budgets, self.batch) if examples else []
        for example, answer in zip(examples, written, strict=True):
            reading = self.wording.read(answer.text, example)
            reading.faults[TRUNCATED] += not answer.ended
            reading.faults += Counter()
            readings.append(reading)
        return readings


def training_examples(asker: Asker, notes: Iterable[Note]) -> list[Example]:
    """The questions and answers of annotated notes, within each note's tasks."""
    found: list[Example] = []
    for note in notes:
        for window in asker.windows(note).windows:
            found += [ner_example(window)] if "ner" in note.tasks else []
            found += re_examples(window) if "re" in note.tasks else []
    return found


def _mention(mark: Mark, source: Source) -> Mention:
    return Mention(mark.label, (source.span(mark.words),))


def _gold_heads(entities: Iterable[Entity], source: Source) -> list[tuple[Mark, Mention]]:
    """Each gold head as the words to mark, and as annotated."""
    heads = []
    for entity in entities:
        if entity.label not in ENTITY_TYPES:
            continue
        mention = Mention(entity.label, entity.spans)
        words = source.cover(mention.spans[0][0], mention.spans[-1][1])
        if words is not None:
            heads.append((Mark(mention.label, words), mention))
    return heads


def _scored(
    note: Note, found: Answers, site: str, adapter: Literal["generic", "personalised", "none"]
) -> ScoredDocument:
    mentions = {entity.entity_id: Mention(entity.label, entity.spans) for entity in note.entities}
    return ScoredDocument(
        note_id=note.note_id,
        patient_id=note.patient_id,
        site=site,
        adapter=adapter,
        tasks=note.tasks,
        annotated=note.annotated,
        gold_entities=tuple(m for m in mentions.values() if m.label in ENTITY_TYPES),
        gold_links=tuple(Link(mentions[r.head], mentions[r.tail]) for r in note.relations),
        predicted_entities=tuple(found.entities),
        links_gold_heads=tuple(found.links_gold_heads),
        links_end_to_end=tuple(found.links_end_to_end),
        outputs=found.outputs,
        faults={kind: count for kind, count in found.faults.items() if count},
    )
