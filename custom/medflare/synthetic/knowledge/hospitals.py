# SPDX-License-Identifier: Apache-2.0
"""Hospitals that ask about the world: which facts each of them has, how many, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medflare.core.errors import ConfigError
from medflare.data.partition.texts import TextPlan, assign_groups_to_sites
from medflare.data.records import Question
from medflare.synthetic.knowledge.questions import draw_dialect, draw_habits, write_questions
from medflare.synthetic.knowledge.world import Fact, World, world

SPREAD = 0.5
"""Standard deviation of the logarithm of a hospital's size."""
HELD_OUT = 20
"""Validation and test questions a hospital has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsDemo:
    """Synthetic hospitals of unequal size that share the groups of their texts.

    Attributes:
        partition: how texts are dealt, of `partition.texts.TEXT_PARTITIONS`; alpha: of dirichlet.
    """

    hospitals: int = 3
    partition: str = "class"
    alpha: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hospitals < 2:
            raise ConfigError(f"{self.hospitals} hospital(s): expected 2 or more.")

    @property
    def plan(self) -> TextPlan:
        """Partition of the texts into hospitals site-1, site-2, …."""
        return TextPlan(
            sites=tuple(f"site-{number}" for number in range(1, self.hospitals + 1)),
            method=self.partition,
            alpha=self.alpha,
            seed=self.seed,
            sizes=sizes_of(self.hospitals, self.seed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionsDemo(TextsDemo):
    """Synthetic hospitals with questions, which are dealt by the group of their fact.

    Attributes:
        questions: training questions of a hospital on average; validation has a tenth of it, the test a
            quarter (HELD_OUT at least).
        tested: every hospital is tested on all facts that any hospital trains on, or on its own.
        diseases, groups: size of the world; five facts a disease.
        synonyms, vignettes: as in `draw_habits`; the milder, the sooner facts are learnt.
        dialects: every hospital has one name of its own for each term, also in its options (`draw_dialect`).
    """

    questions: int = 240
    tested: Literal["all", "own"] = "all"
    diseases: int = 3
    groups: int = 8
    synonyms: float = 0.8
    vignettes: float = 0.3
    dialects: bool = False

    def __post_init__(self) -> None:
        TextsDemo.__post_init__(self)  # slots=True rebuilds the class, after which super() fails
        if self.questions < 1:
            raise ConfigError(f"{self.questions} questions of a hospital: expected 1 or more.")
        if self.tested not in ("all", "own"):
            raise ConfigError(f"tested: {self.tested!r}; choose all or own.")
        if not (0 <= self.synonyms <= 1 and 0 <= self.vignettes <= 1):
            raise ConfigError(f"synonyms {self.synonyms}, vignettes {self.vignettes}: expected 0 to 1.")

    @property
    def world(self) -> World:
        return world(self.diseases, self.groups)


def sizes_of(count: int, seed: int) -> tuple[float, ...]:
    """Return relative sizes of hospitals, log-normal with SPREAD."""
    rng = np.random.default_rng([seed, 71])
    return tuple(float(size) for size in np.exp(rng.normal(0, SPREAD, count)))


def question_hospitals(demo: QuestionsDemo) -> dict[str, list[Question]]:
    """Return hospital -> its questions of all splits; the same for the same settings on every machine.

    Raises:
        ConfigError: as `assign_groups_to_sites`.
        ValueError: a world that the tables do not have.
    """
    plan = demo.plan
    rng = np.random.default_rng([demo.seed, 72])
    facts = _in_turn(demo.world.facts, demo.questions * demo.hospitals, rng)
    given = assign_groups_to_sites({str(number): fact.group for number, fact in enumerate(facts)}, plan)
    trained = list(dict.fromkeys(facts))
    questions: dict[str, list[Question]] = {}
    for number, name in enumerate(plan.sites):
        local = [fact for index, fact in enumerate(facts) if given[str(index)] == number]
        habits = draw_habits(np.random.default_rng([demo.seed, 73, number]), demo.synonyms, demo.vignettes)
        if demo.dialects:
            dialect = draw_dialect(demo.world, np.random.default_rng([demo.seed, 75, number]))
            habits = replace(habits, dialect=dialect)
        tested = trained if demo.tested == "all" else list(dict.fromkeys(local))
        words = np.random.default_rng([demo.seed, 74, number])
        questions[name] = [
            question
            for split, listed in (
                ("train", local),
                ("val", _in_turn(tested, max(demo.questions // 10, HELD_OUT), words)),
                ("test", _in_turn(tested, max(demo.questions // 4, HELD_OUT), words)),
            )
            for question in write_questions(demo.world, listed, split, habits, words, name)
        ]
    return questions


def _in_turn(facts: Sequence[Fact], count: int, rng: np.random.Generator) -> list[Fact]:
    """Return `count` facts in random order, every one as often as any other (but for one)."""
    repeated: list[Fact] = []
    while len(repeated) < count:
        repeated += [facts[int(i)] for i in rng.permutation(len(facts))]
    return repeated[:count]
