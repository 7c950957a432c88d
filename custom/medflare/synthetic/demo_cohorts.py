# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals that show a task: some that take part in a run and one that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KNOWLEDGE_SITES = 7
"""Hospitals with knowledge graphs, the unseen one among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCohort:
    """Hospitals that take part, and an unseen one.

    Attributes:
        folder: name of the folder that holds them.
        unseen: name of the hospital that does not take part.
        write: writes them, with their site.yaml, into a folder.
        participants: the word for how many take part, for messages.
    """

    folder: str
    unseen: str
    write: Callable[[Path], Any]
    participants: str = "three"


def _reports(visits: int) -> DemoCohort:
    from medflare.synthetic.demo import write_demo
    from medflare.synthetic.profiles import UNSEEN_HOSPITAL

    return DemoCohort(folder="cohorts", unseen=UNSEEN_HOSPITAL.name, write=write_demo)


def _visits(visits: int) -> DemoCohort:
    from medflare.synthetic.follow_up import write_follow_up_demo
    from medflare.synthetic.profiles import UNSEEN_HOSPITAL

    return DemoCohort(
        folder=f"visit-cohorts-{visits}",
        unseen=UNSEEN_HOSPITAL.name,
        write=lambda folder: write_follow_up_demo(folder, visits),
    )


def _extraction(visits: int) -> DemoCohort:
    from medflare.synthetic.notes import UNSEEN_NOTES, write_notes_demo

    return DemoCohort(folder="note-cohorts", unseen=UNSEEN_NOTES.name, write=write_notes_demo)


def _questions(visits: int) -> DemoCohort:
    from medflare.synthetic.knowledge import write_questions_demo

    return DemoCohort(
        folder="question-cohorts",
        unseen=f"site-{KNOWLEDGE_SITES}",
        write=lambda folder: write_questions_demo(folder, KNOWLEDGE_SITES, questions=160, diseases=2),
        participants="six",
    )


def _summaries(visits: int) -> DemoCohort:
    from medflare.synthetic.knowledge import write_summaries_demo

    return DemoCohort(
        folder="summary-cohorts",
        unseen=f"site-{KNOWLEDGE_SITES}",
        write=lambda folder: write_summaries_demo(folder, KNOWLEDGE_SITES),
        participants="six",
    )


DEMO_COHORTS: dict[str, Callable[[int], DemoCohort]] = {
    "reports": _reports,
    "visits": _visits,
    "extraction": _extraction,
    "questions": _questions,
    "summaries": _summaries,
}
"""Name of a task (`medflare.tasks.TASKS`) -> its hospitals, from the number of visits a job goes through."""
