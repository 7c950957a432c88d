# SPDX-License-Identifier: Apache-2.0
"""Parts of a page that depend on the task: one `TaskPage` for every task of `tasks.TASKS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS
from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.origin import DRAFT, MARKS
from medflare.core.task import Task
from medflare.evaluation.change_extraction import CHANGES
from medflare.reporting.extraction_tables import CAPTION as NOTES_CAPTION
from medflare.reporting.galleries import findings, notes, questions, summaries, visits
from medflare.reporting.galleries.common import Files
from medflare.tasks import TASKS
from medflare.tasks.prediction_files import read_answers, read_predictions, read_summaries

_CAPTION = "Times 100, with 95 % bootstrap intervals over {}."
_BY_TYPE = "Strict F1 × 100; a dash where a type is neither annotated nor extracted."


def _privacy(content: str, records: str) -> str:
    """Return the notice of a page that holds patients' data."""
    return (
        f"This page holds {content}. Handle it like the {records} themselves; write it with an "
        "empty gallery to share the numbers alone."
    )


def _nothing(files: Files) -> None:
    """Return no findings, for a task that drafts none."""


def _no_words(files: Files) -> str:
    """Return no summary, for a task that has none of its own."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresByType:
    """A table of one score by type.

    Attributes:
        title, caption, column: of the table and of the types.
        prefix: the metric of a type is this prefix and the type's name.
        types: in their order; none for those that a run has.
        opened: whether the table is unfolded.
    """

    title: str
    caption: str
    column: str
    prefix: str
    types: tuple[str, ...] = ()
    opened: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """The part of a page that depends on the task.

    Attributes:
        task: of the run.
        lead: what the results are, for a reader who does not know the scores.
        caption: what the values of the tables are.
        charted: scores with a chart, the first `charts` of those that the run has.
        columns: scores of the main table.
        faults: shares of outputs with a fault; columns of the main table where one is above 0.
        by_type: tables of one score by type.
        privacy: what the page holds of patients, when it does.
        read: the records of a predictions file that the gallery can show.
        gallery: (files with their records, how many of each site) -> data of `gallery_template`, or None.
        gallery_template: file in `reporting/templates`.
        notice: what everything that the model wrote is.
        summary: files with their records -> one sentence on how often the model errs; "" where none is.
        findings: files with their records -> data of `findings.html`; None where no findings are drafted.
    """

    task: Task
    lead: str
    caption: str
    charted: tuple[str, ...]
    charts: int
    columns: tuple[str, ...]
    faults: tuple[str, ...] = ()
    by_type: tuple[ScoresByType, ...] = ()
    privacy: str
    read: Callable[[Path], list[Any]]
    gallery: Callable[[Files, int], Any]
    gallery_template: str
    notice: str = MARKS
    findings: Callable[[Files], Any] = _nothing
    summary: Callable[[Files], str] = _no_words


_UNRECOGNISED = ("label_unrecognised", "label_unrecognised_generated")
"""Beside label scores: the reports of which the labeller understood nothing, and which agree with none."""
_VISITS = TaskPage(
    task=TASKS["visits"],
    lead="Generated reports against the radiologists' own, on test studies that no training saw. "
    "The generic adapter is what all sites share; a personalised one stays at its site. Label F1 with other "
    "patients is a control: drafts that score as much there do not tell what is in their image.",
    caption=_CAPTION.format("studies"),
    charted=("change_f1", "label_f1", "bleu_4", "rouge_l"),
    charts=2,
    columns=TASKS["visits"].headline,
    faults=_UNRECOGNISED,
    by_type=(
        ScoresByType(
            title="Which findings are found",
            caption="F1 × 100 of what the reports say; a dash where the references do not have a condition.",
            column="condition",
            prefix="label_f1/",
            types=CONDITIONS,
            opened=False,
        ),
        ScoresByType(
            title="Which changes are told",
            caption="F1 × 100 of what reports of later visits say became of the findings.",
            column="change",
            prefix="change_f1/",
            types=CHANGES,
            opened=False,
        ),
    ),
    privacy=_privacy("images and report text of the sites' test studies", "studies"),
    read=read_predictions,
    gallery=visits.reports_view,
    notice=DRAFT,
    findings=findings.view,
    summary=findings.sentence,
    gallery_template="gallery_reports.html",
)
_REPORTS = replace(_VISITS, task=TASKS["reports"], columns=TASKS["reports"].headline)
_EXTRACTION = TaskPage(
    task=TASKS["extraction"],
    lead="What the model extracts against what annotators marked, on test notes that no training saw. NER "
    "finds entities; RE finds the modifiers of annotated entities, and end to end of those the model "
    "found itself. Strict asks for the exact words and the type, lenient for a common part and the type.",
    caption=NOTES_CAPTION,
    charted=("ner_strict_f1", "re_gold_strict_f1", "re_e2e_strict_f1", "parse_failure_rate"),
    charts=4,
    columns=TASKS["extraction"].headline,
    by_type=(
        ScoresByType(
            title="Entities by type",
            caption=_BY_TYPE,
            column="entity",
            prefix="ner_strict_f1/",
            types=ENTITY_TYPES,
        ),
        ScoresByType(
            title="Modifiers of annotated entities by type",
            caption=_BY_TYPE,
            column="modifier",
            prefix="re_gold_strict_f1/",
            types=MODIFIER_TYPES,
        ),
    ),
    privacy=_privacy("the text of test notes of the sites", "notes"),
    read=notes.read_notes,
    gallery=notes.view,
    gallery_template="gallery_notes.html",
)
_QUESTIONS = TaskPage(
    task=TASKS["questions"],
    lead="Test questions that no training saw. The model holds each option more or less likely; the "
    "likeliest is its answer. Chance is what guessing would reach.",
    caption=_CAPTION.format("questions"),
    charted=("accuracy", "chance"),
    charts=1,
    columns=TASKS["questions"].headline,
    by_type=(
        ScoresByType(
            title="Accuracy by group",
            caption="Accuracy × 100; groups are the source's subjects or specialties.",
            column="group",
            prefix="accuracy/",
        ),
    ),
    privacy=_privacy("test questions of the sites", "questions"),
    read=read_answers,
    gallery=questions.view,
    gallery_template="gallery_questions.html",
)
_SUMMARIES = TaskPage(
    task=TASKS["summaries"],
    lead="Summaries against the physicians' own, of test texts that no training saw.",
    caption=_CAPTION.format("patients"),
    charted=("bleu_4", "rouge_l", "bertscore_f1"),
    charts=2,
    columns=(
        "bleu_1",
        "bleu_2",
        "bleu_3",
        "bleu_4",
        "rouge_l",
        "meteor",
        "label_f1",
        "bertscore_f1",
    ),
    faults=_UNRECOGNISED,
    privacy=_privacy("the text of test records of the sites", "records"),
    read=read_summaries,
    gallery=summaries.view,
    gallery_template="gallery_summaries.html",
)
TASK_PAGES = {page.task.name: page for page in (_REPORTS, _VISITS, _EXTRACTION, _QUESTIONS, _SUMMARIES)}
"""Name of a task -> its page."""


def task_page(task: str) -> TaskPage:
    """Return the page of a task, that of reports for a run that has not got as far as naming its task."""
    return TASK_PAGES.get(task, _REPORTS)
