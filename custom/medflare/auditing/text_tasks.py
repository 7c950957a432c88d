# SPDX-License-Identifier: Apache-2.0
"""The tasks whose runs can be audited, and the losses of their records with and without the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from medflare.core.errors import ConfigError
from medflare.data.cohort import Cohort
from medflare.models.adapters.base import GENERIC
from medflare.models.continuations import log_likelihoods
from medflare.models.text_model import Sequenced, TextModel
from medflare.models.text_result import TextResult
from medflare.tasks.extraction.evaluation import NOTES
from medflare.tasks.extraction.extractor import load_extractor
from medflare.tasks.questions.answerer import load_answerer
from medflare.tasks.questions.evaluation import QUESTIONS
from medflare.tasks.scoring import TextRecords
from medflare.tasks.summaries.evaluation import SUMMARIES
from medflare.tasks.summaries.summariser import load_summariser

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedTask(Generic[Opened]):
    """A text task as audits need it.

    Attributes:
        records: of a cohort, and whose each is.
        open: opens a result folder.
        model: the language model of what was opened.
        rows: (what was opened, records) -> the prompts with their answers that training learns from.
        name: of a record. cohort: (name, records) -> a cohort of nothing else.
    """

    records: TextRecords[Any, Any, Any]
    open: TextResult[Any, Opened]
    model: Callable[[Opened], TextModel]
    rows: Callable[[Opened, Sequence[Any]], Sequence[Sequenced]]
    name: Callable[[Any], str]
    cohort: Callable[[str, list[Any]], Cohort]

    def patient(self, record: Any) -> str:
        """Return whose a record is; one that names nobody is a patient of its own."""
        return self.records.patient(record) or f"\x00{self.name(record)}"


AUDITED: dict[str, AuditedTask[Any]] = {
    "extraction": AuditedTask(
        records=NOTES,
        open=load_extractor,
        model=lambda extractor: extractor.model,
        rows=lambda extractor, notes: extractor.rows(notes)[0],
        name=lambda note: note.note_id,
        cohort=lambda name, notes: Cohort(name=name, notes=notes),
    ),
    "questions": AuditedTask(
        records=QUESTIONS,
        open=load_answerer,
        model=lambda answerer: answerer.model,
        rows=lambda answerer, questions: answerer.rows(questions)[0],
        name=lambda question: question.question_id,
        cohort=lambda name, questions: Cohort(name=name, questions=questions),
    ),
    "summaries": AuditedTask(
        records=SUMMARIES,
        open=load_summariser,
        model=lambda summariser: summariser.model,
        rows=lambda summariser, summaries: summariser.rows(summaries)[0],
        name=lambda summary: summary.summary_id,
        cohort=lambda name, summaries: Cohort(name=name, summaries=summaries),
    ),
}
"""Task -> how it is audited."""


def audited_task(task: str, result: Path) -> AuditedTask[Any]:
    """Return how the result of a run is audited.

    Raises:
        ConfigError: it is not a language model with an adapter, trained on texts.
    """
    known = AUDITED.get(task)
    if known is None or not (result / f"{known.open.task}.json").is_file():
        raise ConfigError(
            f"{result}: holds no adapter of a frozen language model (task '{task}'). An audit compares a "
            f"model with and without one, of the tasks {', '.join(sorted(AUDITED))}."
        )
    return known


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """The mean loss per answer token of one record, without and with the adapter.

    Attributes:
        patient: whose the record is; examples: its prompts.
    """

    patient: str
    examples: int
    base: float
    adapted: float

    @property
    def gain(self) -> float:
        """The fall of the loss by the adapter: the attacker's score, calibrated by the frozen model."""
        return self.base - self.adapted


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records with the rows that training learns of each, at least one.

    Attributes:
        patients: whose each record is.
    """

    records: list[Any]
    patients: list[str]
    rows: list[Sequence[Sequenced]]

    @classmethod
    def of(cls, task: AuditedTask[Opened], opened: Opened, records: Sequence[Any]) -> RecordRows:
        """Return those of the records of which an example fits."""
        found = [(record, task.rows(opened, [record])) for record in records]
        kept = [(record, rows) for record, rows in found if rows]
        return cls([r for r, _ in kept], [task.patient(r) for r, _ in kept], [rows for _, rows in kept])

    def joined(self, other: RecordRows) -> RecordRows:
        """Return these and the others."""
        return RecordRows(
            self.records + other.records, self.patients + other.patients, self.rows + other.rows
        )


def losses_of_records(model: TextModel, records: RecordRows, batch: int) -> list[float]:
    """Return the mean loss per answer token of each record, by what is in use."""
    flat = example_losses(model, [row for rows in records.rows for row in rows], batch)
    losses, start = [], 0
    for rows in records.rows:
        tokens = sum(len(row.ids) - row.start for row in rows)
        losses.append(sum(flat[start : start + len(rows)]) / tokens)
        start += len(rows)
    return losses


def record_losses(model: TextModel, records: RecordRows, batch: int) -> list[RecordLoss]:
    """Return the losses of records without and with the adapter, which is in use afterwards."""
    model.adapters.use(())
    base = losses_of_records(model, records, batch)
    model.adapters.use((GENERIC,))
    adapted = losses_of_records(model, records, batch)
    return [
        RecordLoss(patient, len(rows), *losses)
        for patient, rows, *losses in zip(records.patients, records.rows, base, adapted, strict=True)
    ]


def example_losses(model: TextModel, rows: Sequence[Sequenced], batch: int) -> list[float]:
    """Return the negative log-likelihood of each row's answer, summed over its tokens."""
    prompts = [row.ids[: row.start] for row in rows]
    sums = log_likelihoods(model, prompts, [[row.ids[row.start :]] for row in rows], batch)
    return [-values[0] for values in sums]
