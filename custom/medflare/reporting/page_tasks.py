# SPDX-License-Identifier: Apache-2.0
"""What a page says and shows that depends on what the run was trained for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS
from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.run_record import RunRecord
from medflare.evaluation.change_extraction import CHANGES
from medflare.evaluation.predictions import read_predictions
from medflare.evaluation.question_metrics import read_answers
from medflare.evaluation.summary_metrics import read_summaries
from medflare.reporting.extraction_tables import CAPTION as CAPTION_NOTES
from medflare.reporting.extraction_tables import GLANCE
from medflare.reporting.gallery_notes import notes_section, readable
from medflare.reporting.gallery_questions import questions_section
from medflare.reporting.gallery_summaries import summaries_section
from medflare.reporting.gallery_visits import reports_section
from medflare.reporting.html import Html
from medflare.reporting.tables import CAPTION, HEADLINE, unit_of

Found = Sequence[tuple[Path, list[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A table of one score by type: the metric of a type is `prefix` and its name.

    types: in their order; none for those that a run has.
    """

    title: str
    caption: str
    column: str
    prefix: str
    types: tuple[str, ...] = ()
    opened: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of run.

    Attributes:
        unit: what is counted and shown, in the plural.
        lead: what the results are, for a reader who does not know the scores.
        charted: scores with a chart, the first `charts` of those that the run has.
        columns: scores of the main table.
        privacy: what the page holds of patients, when it does.
        read: a predictions file's items that the gallery can show.
        gallery: (files with their items, how many of each site) -> the section.
    """

    unit: str
    lead: str
    caption: str
    charted: tuple[str, ...]
    charts: int
    columns: tuple[str, ...]
    heats: tuple[Heat, ...]
    privacy: str
    read: Callable[[Path], list[Any]]
    gallery: Callable[[Found, int], Html]


REPORTS = Kind(
    unit="studies",
    lead="Generated reports against the radiologists' own, on test studies that no training saw. "
    "The generic adapter is what all sites share; a personalised one stays at its site.",
    caption=CAPTION,
    charted=("change_f1", "label_f1", "bleu_4", "rouge_l"),
    charts=2,
    columns=HEADLINE,
    heats=(
        Heat(
            title="Which findings are found",
            caption="F1 × 100 of what the reports say; 0 also where a condition does not occur.",
            column="condition",
            prefix="label_f1/",
            types=CONDITIONS,
            opened=False,
        ),
        Heat(
            title="Which changes are told",
            caption="F1 × 100 of what reports of later visits say became of the findings.",
            column="change",
            prefix="change_f1/",
            types=CHANGES,
            opened=False,
        ),
    ),
    privacy="This page holds images and report text of the sites' test studies. Handle it like the "
    "studies themselves; write it with an empty gallery to share the numbers alone.",
    read=read_predictions,
    gallery=reports_section,
)
NOTES = Kind(
    unit="notes",
    lead="What the model extracts against what annotators marked, on test notes that no training saw. NER "
    "finds entities; RE finds the modifiers of annotated entities, and end to end of those the model "
    "found itself. Strict asks for the exact words and the type, lenient for a common part and the type.",
    caption=CAPTION_NOTES,
    charted=("ner_strict_f1", "re_gold_strict_f1", "re_e2e_strict_f1", "parse_failure_rate"),
    charts=4,
    columns=GLANCE,
    heats=(
        Heat(
            title="Entities by type",
            caption="Strict F1 × 100; a dash where a type is neither annotated nor extracted.",
            column="entity",
            prefix="ner_strict_f1/",
            types=ENTITY_TYPES,
        ),
        Heat(
            title="Modifiers of annotated entities by type",
            caption="Strict F1 × 100; a dash where a type is neither annotated nor extracted.",
            column="modifier",
            prefix="re_gold_strict_f1/",
            types=MODIFIER_TYPES,
        ),
    ),
    privacy="This page holds the text of test notes of the sites. Handle it like the notes themselves; "
    "write it with an empty gallery to share the numbers alone.",
    read=readable,
    gallery=notes_section,
)
QUESTIONS = Kind(
    unit="questions",
    lead="Test questions that no training saw. The model holds each option more or less likely; the "
    "likeliest is its answer. Chance is what guessing would reach.",
    caption=CAPTION.replace("studies", "questions"),
    charted=("accuracy", "chance"),
    charts=1,
    columns=("accuracy", "chance"),
    heats=(
        Heat(
            title="Accuracy by group",
            caption="Accuracy × 100; groups are the source's subjects or specialties.",
            column="group",
            prefix="accuracy/",
        ),
    ),
    privacy="This page holds test questions of the sites. Handle it like the questions themselves; write it "
    "with an empty gallery to share the numbers alone.",
    read=read_answers,
    gallery=questions_section,
)
SUMMARIES = Kind(
    unit="summaries",
    lead="Summaries against the physicians' own, of test texts that no training saw.",
    caption=CAPTION.replace("studies", "patients"),
    charted=("bleu_4", "rouge_l", "bertscore_f1"),
    charts=2,
    columns=("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "meteor", "label_f1", "bertscore_f1"),
    heats=(),
    privacy="This page holds the text of test records of the sites. Handle it like the records themselves; "
    "write it with an empty gallery to share the numbers alone.",
    read=read_summaries,
    gallery=summaries_section,
)
KINDS = {kind.unit: kind for kind in (REPORTS, NOTES, QUESTIONS, SUMMARIES)}


def kind_of(record: RunRecord) -> Kind:
    """The kind of a run by its scores, those of its curves where nothing was evaluated yet."""
    scores = [name for item in record.evaluations for name in item.metrics]
    curves = [name.partition("_")[2] for entry in record.rounds for name in entry.mean]
    return KINDS[unit_of(scores or curves)]
