# SPDX-License-Identifier: Apache-2.0
"""The tasks whose runs can be audited, and the losses of their records with and without the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from medflare.core.errors import ConfigError
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
        name: of a record.
    """

    records: TextRecords[Any, Any, Any]
    open: TextResult[Any, Opened]
    model: Callable[[Opened], TextModel]
    rows: Callable[[Opened, Sequence[Any]], Sequence[Sequenced]]
    name: Callable[[Any], str]

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
    ),
    "questions": AuditedTask(
        records=QUESTIONS,
        open=load_answerer,
        model=lambda answerer: answerer.model,
        rows=lambda answerer, questions: answerer.rows(questions)[0],
        name=lambda question: question.question_id,
    ),
    "summaries": AuditedTask(
        records=SUMMARIES,
        open=load_summariser,
        model=lambda summariser: summariser.model,
        rows=lambda summariser, summaries: summariser.rows(summaries)[0],
        name=lambda summary: summary.summary_id,
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
            f"{result}: is the result of another kind of run (task '{task}'). An audit compares a frozen "
            f"language model with and without its adapter: tasks {', '.join(sorted(AUDITED))}."
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


def record_losses(
    task: AuditedTask[Opened], opened: Opened, records: Sequence[Any], batch: int
) -> list[RecordLoss]:
    """Return the losses of records; those without any example that fits are left out.

    Afterwards the adapter is in use.
    """
    rows = [(record, task.rows(opened, [record])) for record in records]
    rows = [(record, examples) for record, examples in rows if examples]
    flat = [example for _, examples in rows for example in examples]
    model = task.model(opened)
    model.adapters.use(())
    base = example_losses(model, flat, batch)
    model.adapters.use((GENERIC,))
    adapted = example_losses(model, flat, batch)
    losses, start = [], 0
    for record, examples in rows:
        part = slice(start, start + len(examples))
        tokens = sum(len(example.ids) - example.start for example in examples)
        means = [sum(values[part]) / tokens for values in (base, adapted)]
        losses.append(RecordLoss(task.patient(record), len(examples), *means))
        start += len(examples)
    return losses


def example_losses(model: TextModel, rows: Sequence[Sequenced], batch: int) -> list[float]:
    """Return the negative log-likelihood of each row's answer, summed over its tokens."""
    prompts = [row.ids[: row.start] for row in rows]
    sums = log_likelihoods(model, prompts, [[row.ids[row.start :]] for row in rows], batch)
    return [-values[0] for values in sums]
