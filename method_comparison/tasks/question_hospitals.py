# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals that ask about one world of facts, for comparisons on a simulated clock.

Each hospital trains the embedded notes decoder's LoRA. Quality is the accuracy on facts of all hospitals, in
wordings that nobody trains on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig, load_site_file

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OUTLIERS = "outliers"
"""Partition: questions dealt evenly, and every fifth hospital has wrong answers (the positive control)."""
OUTLIER_STEP = 5


class QuestionSettings(Settings):
    """Hospitals, learner and clock, equal for all methods.

    Attributes:
        hours: of simulated time, the same for every method; nothing else ends a run.
        checks: at so many equal times of the simulated clock is quality measured.
        alpha: of the partition dirichlet; questions: training questions of a hospital on average.
        diseases, groups: size of the world, five facts a disease.
        dialects: every hospital has names of its own for all terms, so that graphs need alignment.
        tested: test questions of all hospitals.
        lr: a rate of AdamW at which the loss falls steadily (4e-3 did not).
        message: bytes of the adapter each way, rank 8 on all projections of a 7B model in bf16.
        seconds_an_example: of the typical hospital.
        spread: standard deviation of the logarithm of speeds and lines; 0 for hospitals that are alike.
    """

    hospitals: int = Field(default=20, ge=2)
    hours: float = Field(default=1.1, gt=0)
    checks: int = Field(default=16, ge=2)
    alpha: float = Field(default=0.3, gt=0)
    questions: int = Field(default=30, ge=1)
    diseases: int = Field(default=2, ge=1)
    groups: int = Field(default=6, ge=2)
    dialects: bool = False
    tested: int = Field(default=140, ge=1)
    lr: float = Field(default=2e-3, gt=0)
    rank: int = Field(default=16, ge=1)
    batch: int = Field(default=8, ge=1)
    message: int = Field(default=41_943_040, ge=1)
    seconds_an_example: float = Field(default=0.5, gt=0)
    spread: float = Field(default=0.8, ge=0)

    @property
    def horizon(self) -> float:
        """Simulated seconds of a run."""
        return 3600 * self.hours

    @property
    def learner(self) -> dict[str, Any]:
        """Settings of the learner, as in jobs/ddcs_qa."""
        return {
            "optimiser": {"batch": self.batch, "lr": self.lr, "warmup": 0.0},
            "lora": {"rank": self.rank, "lora_alpha": 4 * self.rank, "targets": TARGETS, "dropout": 0.0},
            "local_epochs": 1,
            "max_tokens": 96,
            "eval_batch": 64,
        }


def cohort_folder(shared: Path, partition: str, seed: int) -> Path:
    """Return where the hospitals of a partition and seed stand."""
    return shared / "cohorts" / f"{partition}-{seed}"


def write_hospitals(settings: QuestionSettings, partition: str, seed: int, shared: Path) -> None:
    """Write the hospitals of a partition and seed unless they are there."""
    from medflare.synthetic.knowledge.files import write_questions_demo

    folder = cohort_folder(shared, partition, seed)
    if (folder / "complete").is_file():
        return
    dealt = "iid" if partition == OUTLIERS else partition
    write_questions_demo(
        folder,
        settings.hospitals,
        dealt,
        seed,
        alpha=settings.alpha,
        diseases=settings.diseases,
        groups=settings.groups,
        questions=settings.questions,
        dialects=settings.dialects,
    )
    if partition == OUTLIERS:
        for number in range(1, settings.hospitals + 1):
            if has_wrong_answers(f"site-{number}"):
                _give_wrong_answers(folder / f"site-{number}" / "questions.jsonl", seed)
    (folder / "complete").touch()


def has_wrong_answers(site: str) -> bool:
    """Return whether a hospital of the partition `outliers` trains on wrong answers: every fifth does."""
    return int(site.removeprefix("site-")) % OUTLIER_STEP == 0


def _give_wrong_answers(path: Path, seed: int) -> None:
    """Mark one of the other options of every training question as correct."""
    random, rows = np.random.default_rng(seed), [json.loads(line) for line in path.open(encoding="utf-8")]
    for row in rows:
        if row["split"] == "train":
            row["answer"] = str(random.choice([mark for mark in row["options"] if mark != row["answer"]]))
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def read_hospitals(shared: Path, partition: str, seed: int) -> dict[str, SiteConfig]:
    """Return the hospitals that `write_hospitals` wrote."""
    return load_site_file(cohort_folder(shared, partition, seed) / "site.yaml")


class Judge:
    """Tests states on questions of all hospitals."""

    def __init__(self, learner: Any, questions: Sequence[Any]) -> None:
        self.learner, self.questions = learner, questions

    def accuracy(self, state: Mapping[str, Any]) -> float:
        """Return the accuracy of a shared state."""
        self.learner.load_shared({name: value.clone() for name, value in state.items()})
        self.learner.use()
        return float(self.learner.quality(self.questions)["accuracy"])


def make_learners(
    settings: QuestionSettings, sites: Mapping[str, SiteConfig], seed: int
) -> tuple[dict[str, Any], Judge]:
    """Return every hospital's learner, all on one model, and a judge with test questions of all hospitals."""
    from medflare.learners.questions.learner import QuestionLearner
    from medflare.learners.questions.settings import METHOD
    from medflare.learners.text_task.learner import text_model

    chosen = METHOD.resolve(settings.learner)
    model = text_model(chosen, next(iter(sites.values())), seed, METHOD.task)
    read = {name: load_cohort(site) for name, site in sites.items()}
    tests = [q for cohort in read.values() for q in cohort.questions if q.split == "test"]
    place = np.random.default_rng(seed).permutation(len(tests))[: settings.tested]
    pooled = Cohort(name="judge", questions=[tests[i] for i in sorted(place)])
    learners = {
        name: QuestionLearner(name, cohort, model, chosen, seed)
        for name, cohort in read.items()
        if any(q.split == "train" for q in cohort.questions)
    }
    return learners, Judge(QuestionLearner("judge", pooled, model, chosen, seed), pooled.questions)


class Grid:
    """Measures a run at equal times of the simulated clock: the state that was there at each of them.

    A choice that ends many rounds in a span is then measured as often, over the same span, as one that ends
    few (DD-16).

    Attributes:
        curve: (simulated seconds, accuracy) so far.
    """

    def __init__(self, judge: Judge, horizon: float, checks: int, state: Mapping[str, Any]) -> None:
        self.judge, self.times = judge, [horizon * (i + 1) / checks for i in range(checks)]
        self.state = dict(state)
        self.curve: list[tuple[float, float]] = []

    def advance(self, now: float, state: Mapping[str, Any]) -> None:
        """Measure the state before this round at all times up to `now`, at which `state` came to be."""
        passed = [time for time in self.times[len(self.curve) :] if time < now]
        self._measure(passed)
        self.state = dict(state)

    def finish(self) -> list[tuple[float, float]]:
        """Measure the last state at the times that are left; return the curve."""
        self._measure(self.times[len(self.curve) :])
        return self.curve

    def _measure(self, times: Sequence[float]) -> None:
        if times:
            accuracy = self.judge.accuracy(self.state)
            self.curve += [(time, accuracy) for time in times]
