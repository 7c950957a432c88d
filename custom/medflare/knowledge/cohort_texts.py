# SPDX-License-Identifier: Apache-2.0
"""The texts a site's knowledge graph is made of (DDCS). They stay at the site.

A question with its options is one chunk, and so is a source with its target; paragraphs of notes and reports
are parted by the extractor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medflare.data.records import SPLITS, Question, Summary

if TYPE_CHECKING:
    from medflare.data.cohort import Cohort


def knowledge_texts(cohort: Cohort, split: str = "train") -> list[str]:
    """Return one text for each question, summary, note and study of a split; ValueError lists the splits."""
    if split not in SPLITS:
        raise ValueError(f"there is no split '{split}'; choose one of: {', '.join(SPLITS)}.")
    return [
        *(question_chunk(question) for question in cohort.questions if question.split == split),
        *(summary_chunk(summary) for summary in cohort.summaries if summary.split == split),
        *(note.text for note in cohort.notes if note.split == split),
        *(study.report for study in cohort.studies if study.split == split),
    ]


def question_chunk(question: Question) -> str:
    """Return question and answer as one sentence, so that they are found together; wrong options a line each.

    A text that the answer completes ("Asthma is treated with") stays a sentence that says something.
    """
    text = " ".join(question.text.split())
    asked = text.rstrip(" ?.:")
    between = ": " if text.endswith("?") else " "
    others = [text for letter, text in question.options if letter != question.answer]
    return "\n".join([f"{asked}{between}{question.answer_text}.", "Other options:", *others])


def summary_chunk(summary: Summary) -> str:
    """Return source and target without an empty line between or inside them."""
    lines = f"{summary.source}\n{summary.target}".splitlines()
    return "\n".join(line for line in lines if line.strip())
