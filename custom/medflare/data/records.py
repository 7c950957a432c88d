# SPDX-License-Identifier: Apache-2.0
"""Typed records of a site's data: what every reader returns and every learner consumes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

Span = tuple[int, int]
"""Start and end of a piece of text in code points, end-exclusive."""
SPLITS: tuple[str, ...] = ("train", "val", "test")
_TEXT, _PATIENT = "w", "p"
"""Prefixes of links, so that a text and a patient never have the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One radiological examination: pictures and the report that was written for them.

    Attributes:
        images: absolute paths, in the order of the source.
        report: the findings (and impression) after cleaning; never empty.
        split: one of SPLITS; always the same for all studies of a patient.
        codes: 14 values of Code in the order of CONDITIONS, or None before labelling.
        age: years; sex: "F", "M" or None; day: days since the patient's first study.
        visit: number of the patient's visit, 1..T, where a site reads its studies as visits.
        place: file and line of its row, for messages.
        extra: covariates that a site named, and what a reader could not read ("unread").
        may_repeat: whether records of this class are asked as one where their words are the same.
        repetition_key: None, since two patients may have the same report of different images.
    """

    may_repeat: ClassVar[bool] = False
    repetition_key: ClassVar[None] = None
    study_id: str
    patient_id: str
    images: tuple[Path, ...]
    report: str
    split: str = "train"
    codes: tuple[int, ...] | None = None
    view: str = ""
    age: float | None = None
    sex: str | None = None
    day: float | None = None
    visit: int | None = None
    place: str = field(default="", compare=False)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def links(self) -> tuple[str, ...]:
        """Names; records with one in common belong to one group, which is in one split and at one site."""
        return (self.patient_id,)

    def from_source(self, source: str, folder: str) -> Study:
        """Return the study with `source` before its id and `folder` before its patient's."""
        return replace(self, study_id=source + self.study_id, patient_id=folder + self.patient_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One visit of a patient.

    Attributes:
        number: t = 1..T. A patient who missed a visit has a hole where the source numbers its visits.
        gap: days since the patient's visit before this one; None for the first, or where days are unknown.
        since: days since the patient's first visit; None where days are unknown.
        prior: the report of the visit before, None for the first (TAR-14's `prior_context`).
    """

    study: Study
    number: int
    gap: float | None = None
    since: float | None = None
    prior: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A person and their visits in order, at least one; all of them are in one split.

    Attributes:
        age: years at the first visit that tells it; sex: "F", "M" or None.
    """

    patient_id: str
    split: str
    age: float | None
    sex: str | None
    visits: tuple[Visit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A marked span of a note; offsets are Python code points, end-exclusive, possibly discontinuous."""

    entity_id: str
    label: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A typed link between two entities of one note."""

    label: str
    head: str
    tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A clinical text with marked entities and relations.

    Attributes:
        text: exactly as in the file; every offset counts its code points.
        relations: head -> modifier links (and whatever else a corpus links); ids are of `entities`.
        tasks: which of `inventory.TASKS` the annotation covers; a site that marked no relations says "ner".
        annotated: the types of `inventory.TYPES` that the annotators looked for; None for all. Only these
            are scored.
    """

    may_repeat: ClassVar[bool] = False
    note_id: str
    text: str
    patient_id: str = ""
    split: str = "train"
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    tasks: tuple[Literal["ner", "re"], ...] = ("ner", "re")
    annotated: tuple[str, ...] | None = None

    @property
    def repetition_key(self) -> str:
        """A text that is equal for notes that repeat each other, whatever their case and white space."""
        return _folded(self.text)

    @property
    def links(self) -> tuple[str, ...]:
        """The patient, or the note where none is named; and the note's words, as no patient is called."""
        return (self.patient_id or self.note_id, f"\0{_TEXT}{self.repetition_key}")

    def from_source(self, source: str, folder: str) -> Note:
        """Return the note with `source` before its id and `folder` before its patient's."""
        return replace(self, note_id=source + self.note_id, patient_id=folder + self.links[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A multiple-choice question with one right option.

    Attributes:
        options: (letter, text) in the source's order, at least two, no two with the same text.
        answer: letter of the right option.
        group: subject or specialty; "" where the source names none.
    """

    may_repeat: ClassVar[bool] = True
    question_id: str
    text: str
    options: tuple[tuple[str, str], ...]
    answer: str
    split: str = "train"
    group: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def answer_text(self) -> str:
        """Text of the right option."""
        return dict(self.options)[self.answer]

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that are compared between sites: the question and all options."""
        return (self.text, *(text for _, text in self.options))

    @property
    def repetition_key(self) -> str:
        """A text that is equal for questions that repeat each other, whatever their case and white space."""
        return _folded(self.text, self.answer_text)

    @property
    def links(self) -> tuple[str, ...]:
        """The question's words."""
        return (_TEXT + self.repetition_key,)

    @property
    def owner(self) -> str:
        """Name of what is assigned to one site as a whole."""
        return self.question_id

    def from_source(self, source: str, folder: str) -> Question:
        """Return the question with `source` before its id."""
        return replace(self, question_id=source + self.question_id)

    def to_row(self) -> dict[str, Any]:
        """Return the line of the format `questions_jsonl`."""
        row = {"id": self.question_id, "question": self.text, "options": dict(self.options)}
        return {**row, "answer": self.answer, **_split_and_group(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A text and what a physician made of it in few words: findings and impression, note and summary.

    Attributes:
        source: what is given; target: what is to be written. Neither is empty; masks (`XXXX`) stay.
        patient_id: whose it is; the summary's own id where the source names nobody.
        group: what a site may have more of than others, such as the detector's family; "" where unknown.
    """

    may_repeat: ClassVar[bool] = True
    summary_id: str
    source: str
    target: str
    patient_id: str = ""
    split: str = "train"
    group: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that are compared between sites: source and target."""
        return (self.source, self.target)

    @property
    def repetition_key(self) -> str:
        """A text that is equal for summaries that repeat each other, whatever their case and white space."""
        return _folded(self.source, self.target)

    @property
    def links(self) -> tuple[str, ...]:
        """The summary's words, and its patient where the source names one."""
        words = _TEXT + self.repetition_key
        return (words, _PATIENT + self.patient_id) if self.patient_id else (words,)

    @property
    def owner(self) -> str:
        """Name of what is assigned to one site as a whole."""
        return self.patient_id or self.summary_id

    def from_source(self, source: str, folder: str) -> Summary:
        """Return the summary with `source` before its id and `folder` before its patient's."""
        return replace(self, summary_id=source + self.summary_id, patient_id=folder + self.patient_id)

    def to_row(self) -> dict[str, Any]:
        """Return the line of the format `summaries_jsonl`."""
        row = {"id": self.summary_id, "patient_id": self.patient_id}
        return {**row, "source": self.source, "target": self.target, **_split_and_group(self)}


TextRecord = TypeVar("TextRecord", Question, Summary)
Record = TypeVar("Record", Study, Note, Question, Summary)


def _folded(*texts: str) -> str:
    """Return texts one a line, in lower case and with single spaces."""
    return "\n".join(" ".join(text.lower().split()) for text in texts)


def _split_and_group(record: Question | Summary) -> dict[str, str]:
    return {"split": record.split, **({"group": record.group} if record.group else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A record that was left out, and why: `reason` is short, to count by; `detail` is a sentence."""

    record: str
    reason: str
    detail: str


class RecordError(Exception):
    """A record that cannot be used; `reason` is short, to count by, and the message names file and place."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class RecordLists:
    """Records of any kind, and those that were left out: several entries may be about one record."""

    studies: list[Study] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of usable records."""
        return len(self.studies) + len(self.notes) + len(self.questions) + len(self.summaries)

    def skip(self, record: str, reason: str, detail: str) -> None:
        """List one record that cannot be used."""
        self.skipped.append(Skipped(record=record, reason=reason, detail=detail))

    @contextmanager
    def skipping(self, record: str) -> Iterator[None]:
        """Skip the record with the reason of a RecordError that is raised inside."""
        try:
            yield
        except RecordError as error:
            self.skip(record, error.reason, str(error))
