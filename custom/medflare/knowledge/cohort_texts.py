# SPDX-License-Identifier: Apache-2.0
"""The texts a site's knowledge graph is made of (DDCS, DD-13). They stay at the site.

A question with its right answer is one chunk, and so is a source with its target; paragraphs of notes and
reports are parted by the extractor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from medflare.data.records import SPLITS, Question, Summary

if TYPE_CHECKING:
    from medflare.data.cohort import Cohort

_PATIENT = re.compile(
    r"\b(?:patients?|(?:wo)?m[ae]n|boys?|girls?|infants?|newborns?|neonates?|child(?:ren)?|toddlers?|"
    r"he|she|his|her|hers|(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)[- ]"
    r"(?:years?|months?|weeks?|days?)[- ]old|presents? (?:with|to)|presented (?:with|to))\b",
    re.IGNORECASE,
)
"""Words of a question that is about a patient ("A 45-year-old man presents with ...")."""


class KnowledgeText(NamedTuple):
    """One text of a site's knowledge.

    Attributes:
        of_patient: whether it speaks of a patient; only then does a mention say what a patient has (DD-13).
    """

    text: str
    of_patient: bool = True


def knowledge_texts(cohort: Cohort, split: str = "train") -> list[KnowledgeText]:
    """Return one text for each question, summary, note and study of a split; ValueError lists the splits."""
    if split not in SPLITS:
        raise ValueError(f"there is no split '{split}'; choose one of: {', '.join(SPLITS)}.")
    questions = (question for question in cohort.questions if question.split == split)
    return [
        *(KnowledgeText(question_chunk(one), bool(_PATIENT.search(one.text))) for one in questions),
        *(KnowledgeText(summary_chunk(summary)) for summary in cohort.summaries if summary.split == split),
        *(KnowledgeText(note.text) for note in cohort.notes if note.split == split),
        *(KnowledgeText(study.report) for study in cohort.studies if study.split == split),
    ]


def question_chunk(question: Question) -> str:
    """Return question and right answer as one sentence, so that they are found together.

    A text that the answer completes ("Asthma is treated with") stays a sentence that says something. Wrong
    options are no knowledge, and are left out (DD-13).
    """
    text = " ".join(question.text.split())
    asked = text.rstrip(" ?.:")
    between = ": " if text.endswith("?") else " "
    return f"{asked}{between}{question.answer_text}."


def summary_chunk(summary: Summary) -> str:
    """Return source and target without an empty line between or inside them."""
    lines = f"{summary.source}\n{summary.target}".splitlines()
    return "\n".join(line for line in lines if line.strip())
