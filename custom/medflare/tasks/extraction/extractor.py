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

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES
from medflare.data.notes.windows import Windowed, split_note
from medflare.data.notes.word_offsets import Source, source_of
from medflare.data.records import Entity, Note
from medflare.evaluation.extraction_predictions import PARSE_FAILURE, Link, Mention, ScoredDocument
from medflare.models.text_model import TextModel
from medflare.tasks.extraction.examples import NER, Example, Losses, head_question, ner_example, re_examples
from medflare.tasks.extraction.markup import TRUNCATED, Mark, Reading, outermost
from medflare.tasks.extraction.prompts import Wording

NESTED = "nested entity"
MARKUP = 48
"""Tokens that an answer may take besides twice its text; short texts need them for their marks."""
END = 8
MARKS = {
    "html": ('<span class="reference_range">', "</span>"),
    "json": ('{"entity": "reference_range", "text": "', '"}, '),
}
"""What an answer adds for one mark; its budget allows for a mark on every second word."""
LEAST = 16
"""Tokens of text below which a window is of no use."""
Heads = Literal["none", "found", "gold", "both"]


@dataclass(slots=True)
class Answers:
    """What a model said of one note; links are None where it was not asked for them."""

    entities: list[Mention] = field(default_factory=list)
    links_gold_heads: list[Link] | None = None
    links_end_to_end: list[Link] | None = None
    outputs: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Place:
    """A window of a note: which note, the window's words, and its heads as the words to mark.

    Attributes:
        gold: each gold head with its place in the note as annotated.
    """

    note: int
    source: Source
    found: list[Mark] = field(default_factory=list)
    gold: list[tuple[Mark, Mention]] = field(default_factory=list)


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
        """The windows of an annotated note to learn from, none longer than `room`."""
        return split_note(note, self.sentences, self.room, self.tokens)

    def blind_windows(self, note: Note) -> Windowed:
        """The windows of a note to extract from: its annotation has no say in where sentences end."""
        return split_note(note, self.sentences, self.room, self.tokens, keep=())

    def extract(self, notes: Sequence[Note], heads: Heads = "found") -> list[Answers]:
        """Answers for each note; `heads` says of which heads modifiers are asked."""
        windows = [(i, window) for i, note in enumerate(notes) for window in self.blind_windows(note).windows]
        answers = [Answers() for _ in notes]
        examples = [ner_example(window, notes[i].annotated) for i, window in windows]
        places = [Place(i, example.source) for (i, _), example in zip(windows, examples, strict=True)]
        for place, reading in zip(places, self.ask(examples), strict=True):
            place.found = outermost(reading.marks)
            reading.faults[NESTED] += len(place.found) < len(reading.marks)
            self._note(answers[place.note], reading)
            answers[place.note].entities += [_mention(mark, place.source) for mark in place.found]
        if heads in ("gold", "both"):
            for (_, window), place in zip(windows, places, strict=True):
                place.gold = _gold_heads(window.entities, place.source)
        if heads != "none":
            self._modifiers(answers, notes, places, heads)
        return answers

    def _modifiers(
        self, answers: Sequence[Answers], notes: Sequence[Note], places: Sequence[Place], heads: Heads
    ) -> None:
        """Asks for the modifiers of every wanted head and hangs them on gold and found heads."""
        for answer in answers:
            answer.links_gold_heads = [] if heads != "found" else None
            answer.links_end_to_end = [] if heads != "gold" else None
        wanted, asked = [], []
        for place in places:
            note = notes[place.note]
            for mark in _heads(place, heads):
                question = head_question(note.note_id, place.source, mark, annotated=note.annotated)
                if question.types:
                    wanted.append((place, mark))
                    asked.append(question)
        told: dict[tuple[int, Mark], list[Mention]] = defaultdict(list)
        for (place, mark), reading in zip(wanted, self.ask(asked), strict=True):
            self._note(answers[place.note], reading)
            told[id(place), mark] = [_mention(found, place.source) for found in reading.marks]
        for place in places:
            gold, found = answers[place.note].links_gold_heads, answers[place.note].links_end_to_end
            if gold is not None:
                gold += [Link(head, m) for mark, head in place.gold for m in told[id(place), mark]]
            if found is not None:
                own = [(mark, _mention(mark, place.source)) for mark in place.found]
                found += [Link(head, m) for mark, head in own for m in told[id(place), mark]]

    def _note(self, answers: Answers, reading: Reading) -> None:
        """Counts an output and its faults, each kind once."""
        answers.outputs += 1
        answers.faults.update(kind for kind, count in reading.faults.items() if count)
        answers.faults[PARSE_FAILURE] += reading.failed

    def documents(
        self, notes: Sequence[Note], site: str, adapter: Literal["generic", "personalised", "none"]
    ) -> list[ScoredDocument]:
        """Annotated notes with their texts beside what the model says, for a file that stays at the site.

        Modifiers are asked only where they can be scored: in notes that are annotated with them.
        """
        linked = iter(self.extract([note for note in notes if "re" in note.tasks], "both"))
        plain = iter(self.extract([note for note in notes if "re" not in note.tasks], "none"))
        answered = [(note, next(linked if "re" in note.tasks else plain)) for note in notes]
        return [_scored(note, found, site, adapter) for note, found in answered]


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
        around = max(len(ids) for ids in model.prompt_ids([wording.question(e) for e in _shortest()]))
        # a question needs its text once, an answer up to twice
        longest = min(longest, model.context)
        room = (longest - around - MARKUP) // 3
        if room < LEAST:
            raise ConfigError(
                f"max_tokens is {longest}, but a question alone takes up to {around} tokens and an answer "
                f"twice its text and {MARKUP}. Set max_tokens to {around + MARKUP + 3 * LEAST} or more."
            )
        self.mark = sum(self._lengths(list(MARKS[wording.format])))
        super().__init__(sentences, room)

    def tokens(self, text: str) -> int:
        return self._lengths([source_of(text).text])[0]

    def _lengths(self, texts: list[str]) -> list[int]:
        found = self.model.backbone.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [len(ids) for ids in found]

    def ask(self, examples: Sequence[Example]) -> list[Reading]:
        """One reading for each question; an answer that did not end in time is a fault."""
        if not examples:
            return []
        questions = [self.wording.question(example) for example in examples]
        sizes = self._lengths([example.source.text for example in examples])
        budgets = [
            size + END + self.mark * ((len(example.source.words) + 1) // 2)
            for size, example in zip(sizes, examples, strict=True)
        ]
        readings = []
        written = self.model.answer(questions, budgets, self.batch)
        for example, answer in zip(examples, written, strict=True):
            reading = self.wording.read(answer.text, example)
            reading.faults[TRUNCATED] += not answer.ended
            reading.faults += Counter()
            readings.append(reading)
        return readings


def training_examples(
    asker: Asker, notes: Iterable[Note], losses: Losses | None = None
) -> tuple[list[Example], Counter[str]]:
    """The questions and answers of annotated notes within each note's tasks, and what windows lose of them.

    Args:
        losses: counts what the examples cannot express.
    """
    found: list[Example] = []
    lost: Counter[str] = Counter()
    for note in notes:
        cut = asker.windows(note)
        lost["entity cut by windows"] += cut.entities_cut
        lost["relation across windows"] += cut.relations_lost
        for window in cut.windows:
            found += [ner_example(window, note.annotated, losses)] if "ner" in note.tasks else []
            found += re_examples(window, note.annotated, losses) if "re" in note.tasks else []
    return found, lost


def _shortest() -> list[Example]:
    """Every kind of question, about a text of one word."""
    source = source_of("x")
    heads = [head_question("", source, Mark(label, (0, 1))) for label in ENTITY_TYPES]
    return [Example(note_id="", task=NER, source=source), *heads]


def _heads(place: Place, heads: Heads) -> list[Mark]:
    """The heads of a window to ask about, each once, in the order of the text."""
    found = place.found if heads != "gold" else []
    return sorted({*found, *(mark for mark, _ in place.gold)}, key=lambda m: (m.words, m.label))


def _frozen(links: list[Link] | None) -> tuple[Link, ...] | None:
    return None if links is None else tuple(links)


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
        links_gold_heads=_frozen(found.links_gold_heads),
        links_end_to_end=_frozen(found.links_end_to_end),
        outputs=found.outputs,
        faults={kind: count for kind, count in found.faults.items() if count},
        text=note.text,
    )
