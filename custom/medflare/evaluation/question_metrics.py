# SPDX-License-Identifier: Apache-2.0
"""Answers of a model to every test question of a site, and their accuracy.

`accuracy`, and `accuracy/<group>` of the questions of a group; `chance`: what guessing would reach; `margin`:
score of the right option minus that of the best wrong one, in nats, mean over questions; `cut_rate`: share of
questions that had to be cut to fit. The file of answers holds questions, so it stays where they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from medflare.core.run_record import RecordModel
from medflare.evaluation.statistics import Evaluation, Statistic, bootstrap, mean_statistic, restricted

NO_GROUP = "no group"
FEWEST, MOST_GROUPS = 5, 40
"""Questions of a group whose accuracy is reported, and how many groups: what is reported leaves the site."""


class AnsweredQuestion(RecordModel):
    """One question with the score of each option."""

    question_id: str
    site: str
    adapter: Literal["generic", "personalised", "none"]
    question: str
    options: dict[str, str] = Field(min_length=2, description="letter -> text, in the source's order")
    scores: dict[str, float] = Field(description="letter -> log-likelihood, as the job's settings count it")
    chosen: str
    answer: str
    group: str = ""
    cuts: tuple[str, ...] = Field((), description="what of the question did not fit and was cut")

    @model_validator(mode="after")
    def _letters(self) -> AnsweredQuestion:
        if set(self.scores) != set(self.options) or not {self.chosen, self.answer} <= set(self.options):
            raise ValueError("scores, chosen and answer must speak of the options' letters")
        return self

    @property
    def right(self) -> bool:
        """True if the model chose the right option."""
        return self.chosen == self.answer

    @property
    def margin(self) -> float:
        """Score of the right option minus that of the best wrong one; negative for a wrong answer."""
        return self.scores[self.answer] - max(v for k, v in self.scores.items() if k != self.answer)


QUICK = ("accuracy", "margin")
METRICS = ("accuracy", "chance", "margin", "cut_rate")
"""Metrics of all questions; those of groups have names of a site's own."""


def question_statistics(answered: Sequence[AnsweredQuestion]) -> dict[str, Statistic]:
    """Return what every question adds to each metric."""
    right = mean_statistic([float(item.right) for item in answered])
    names = [plain_group(item.group) for item in answered]
    groups = reported_groups(answered)
    return {
        "accuracy": right,
        "chance": mean_statistic([1 / len(item.options) for item in answered]),
        "margin": mean_statistic([item.margin for item in answered]),
        "cut_rate": mean_statistic([float(bool(item.cuts)) for item in answered]),
        **{f"accuracy/{group}": restricted(right, [name == group for name in names]) for group in groups},
    }


def plain_group(group: str) -> str:
    """Return a group's name as metrics carry it: small letters, digits and spaces, 40 of them."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", group.casefold()).split())[:40].strip() or NO_GROUP


def reported_groups(answered: Sequence[AnsweredQuestion]) -> list[str]:
    """Return the groups with a metric: the largest MOST_GROUPS of those with FEWEST questions or more."""
    if not any(item.group for item in answered):
        return []
    sizes = Counter(plain_group(item.group) for item in answered)
    return sorted(name for name, size in sizes.most_common(MOST_GROUPS) if size >= FEWEST)


def quick_question_metrics(answered: Sequence[AnsweredQuestion]) -> dict[str, float]:
    """Return plain numbers for the curves of a running training."""
    statistics = question_statistics(answered)
    return {name: statistics[name].value for name in QUICK}


def evaluate_questions(
    answered: Sequence[AnsweredQuestion], *, replicates: int = 1000, seed: int = 0
) -> Evaluation:
    """Return every metric with its 95 % bootstrap interval over questions."""
    statistics = question_statistics(answered)
    skipped = {}
    if not any(item.group for item in answered):
        skipped = {"accuracy/": "the questions name no group"}
    elif left := len({plain_group(item.group) for item in answered}) - len(reported_groups(answered)):
        skipped = {"accuracy/": f"{left} groups of fewer than {FEWEST} questions, or beyond {MOST_GROUPS}"}
    return Evaluation(bootstrap(statistics, replicates=replicates, seed=seed), skipped, statistics)
