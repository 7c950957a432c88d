# SPDX-License-Identifier: Apache-2.0
"""The synthetic hospitals that `medflare run` takes where it is given no site file, by what a job reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from medflare.recipes.job import Job

RUNS = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Hospitals that take part, and an unseen one.

    Attributes:
        taking_part: how many; the words for it in a message.
        folder: below RUNS; unseen: name of the fourth.
        write: makes them, with their site.yaml, in a folder.
    """

    folder: str
    unseen: str
    write: Callable[[Path], Any]
    taking_part: str = "three"


def demo_hospitals(job_folder: Path, changes: Mapping[str, Any]) -> tuple[Path, str]:
    """(site file, unseen hospital) of the synthetic hospitals a job can read, written where missing.

    changes: to the job, as `recipes.override` takes them.
    """
    from medflare.learners.registry import task_of
    from medflare.recipes.job_reader import read_job
    from medflare.recipes.overrides import override

    job = override(read_job(job_folder), changes)
    demo = DEMOS[task_of(job.method).reads](job)
    folder = RUNS / demo.folder
    if not (folder / "site.yaml").is_file():
        typer.echo(f"writing {demo.taking_part} synthetic hospitals and an unseen one to {folder}", err=True)
        demo.write(folder)
    return folder / "site.yaml", demo.unseen


def _studies(job: Job) -> Demo:
    from medflare.synthetic.demo import write_demo
    from medflare.synthetic.profiles import UNSEEN_HOSPITAL

    return Demo(folder="cohorts", unseen=UNSEEN_HOSPITAL.name, write=write_demo)


def _visits(job: Job) -> Demo:
    from medflare.learners.registry import get_method
    from medflare.synthetic.follow_up import write_follow_up_demo
    from medflare.synthetic.profiles import UNSEEN_HOSPITAL

    count = int(get_method(job.method).resolve(job.settings).visits)
    return Demo(
        folder=f"visit-cohorts-{count}",
        unseen=UNSEEN_HOSPITAL.name,
        write=lambda folder: write_follow_up_demo(folder, count),
    )


def _notes(job: Job) -> Demo:
    from medflare.synthetic.notes import UNSEEN_NOTES, write_notes_demo

    return Demo(folder="note-cohorts", unseen=UNSEEN_NOTES.name, write=write_notes_demo)


KNOWING = 7
"""Hospitals with knowledge graphs, the unseen one among them."""


def _questions(job: Job) -> Demo:
    from medflare.synthetic.knowledge import write_questions_demo

    return Demo(
        folder="question-cohorts",
        unseen=f"site-{KNOWING}",
        write=lambda folder: write_questions_demo(folder, KNOWING, questions=160, diseases=2),
        taking_part="six",
    )


def _summaries(job: Job) -> Demo:
    from medflare.synthetic.knowledge import write_summaries_demo

    return Demo(
        folder="summary-cohorts",
        unseen=f"site-{KNOWING}",
        write=lambda folder: write_summaries_demo(folder, KNOWING),
        taking_part="six",
    )


DEMOS: dict[str, Callable[[Job], Demo]] = {
    "studies": _studies,
    "visits": _visits,
    "notes": _notes,
    "questions": _questions,
    "summaries": _summaries,
}
"""What a task reads (`core.task.Task.reads`) -> the hospitals that have it."""
