# SPDX-License-Identifier: Apache-2.0
"""Questions about the facts of the world, with wrong options of the same kind, in a hospital's own habits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

import numpy as np

from medflare.data.records import Question
from medflare.synthetic.knowledge.wordings import wordings
from medflare.synthetic.knowledge.world import RELATIONS, Fact, World

OPTIONS = 4
NEAR = (1, 2)
"""Fewest and most wrong options from the disease's own specialty; the others are from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionHabits:
    """Question style of one hospital.

    Attributes:
        wordings: relation -> numbers of its training wordings that this hospital uses, its favourite first.
        synonyms: how often a disease goes by another name; vignettes: how often a patient comes first.
        dialect: preferred name of a term -> the only name that this hospital uses for it.
    """

    wordings: dict[str, tuple[int, ...]]
    synonyms: float
    vignettes: float
    dialect: Mapping[str, str] = field(default_factory=dict)


PLAIN = QuestionHabits(wordings={}, synonyms=0.0, vignettes=0.0)


def draw_habits(rng: np.random.Generator, synonyms: float, vignettes: float, used: int = 4) -> QuestionHabits:
    """Draw the habits of a hospital: `used` of the wordings of each relation, and how it names diseases.

    Args:
        synonyms: the most it uses other names; vignettes: how often every second hospital begins so.
    """
    chosen = {
        relation: tuple(int(i) for i in rng.permutation(len(wordings().questions[relation].train))[:used])
        for relation in RELATIONS
    }
    return QuestionHabits(
        wordings=chosen,
        synonyms=float(rng.uniform(0, synonyms)),
        vignettes=float(rng.choice([0.0, vignettes])),
    )


def draw_dialect(world: World, rng: np.random.Generator) -> dict[str, str]:
    """Draw one name for every term of the world: of all diseases, and of all that is linked to them."""
    terms = [term for kind in ("disease", *RELATIONS) for term in world.of_kind(kind)]
    return {term.name: term.names[int(rng.integers(len(term.names)))] for term in terms}


def write_questions(
    world: World,
    facts: Sequence[Fact],
    split: str,
    habits: QuestionHabits,
    rng: np.random.Generator,
    name: str,
) -> Iterator[Question]:
    """Yield one question a fact, in order; a repeated fact is asked in the hospital's next wording.

    Args:
        split: train in the hospital's wordings and names, val and test in wordings that nobody trains on,
            with the preferred name and without a patient, alike at every hospital.
        name: prefix of the questions' ids.
    """
    uses: Counter[Fact] = Counter()
    for number, fact in enumerate(facts):
        texts_of_split = wordings().of(fact.relation, split)
        usual = habits.wordings[fact.relation] if split == "train" else range(len(texts_of_split))
        wording = texts_of_split[usual[uses[fact] % len(usual)]]
        uses[fact] += 1
        letters = ascii_uppercase[:OPTIONS]
        texts = [fact.value.name, *_wrong(world, fact, rng)]
        order = [texts[int(i)] for i in rng.permutation(len(texts))]
        used = habits if split == "train" else PLAIN
        yield Question(
            question_id=f"{name}-{split}-{number:05d}",
            text=_worded(wording, fact, used, rng),
            options=tuple(zip(letters, (used.dialect.get(text, text) for text in order), strict=True)),
            answer=letters[order.index(fact.value.name)],
            split=split,
            group=fact.group,
        )


def _worded(wording: str, fact: Fact, habits: QuestionHabits, rng: np.random.Generator) -> str:
    preferred, *others = fact.disease.names
    other, opens = rng.random() < habits.synonyms, rng.random() < habits.vignettes
    disease = others[int(rng.integers(len(others)))] if others and other else preferred
    disease = habits.dialect.get(preferred, disease)
    asked = " ".join(disease if word == "D" else word for word in _words(wording))
    asked = asked.replace(" ?", "?")
    asked = asked[:1].upper() + asked[1:]
    if not opens:
        return asked
    openings = wordings().vignettes
    opening = openings[int(rng.integers(len(openings)))]
    opening = opening.replace("AGE", str(int(rng.integers(19, 90))))
    return f"{opening.replace('SEX', str(rng.choice(['woman', 'man'])))} {asked}"


def _words(wording: str) -> list[str]:
    return wording.replace("?", " ?").split()


def _wrong(world: World, fact: Fact, rng: np.random.Generator) -> list[str]:
    """Return values of the relation that belong to other diseases, some of the same specialty."""
    others = [f for f in world.facts if f.relation == fact.relation and f.value != fact.value]
    near = [f.value.name for f in others if f.group == fact.group]
    far = [f.value.name for f in others if f.group != fact.group]
    close = min(int(rng.integers(NEAR[0], NEAR[1] + 1)), len(near))
    chosen = [near[int(i)] for i in rng.permutation(len(near))[:close]]
    return chosen + [far[int(i)] for i in rng.permutation(len(far))[: OPTIONS - 1 - close]]
