# SPDX-License-Identifier: Apache-2.0
"""Canaries: made-up patients with secrets of chance, of which half are put into a site's training data.

Whether a canary is included is a fair coin of its own, as the one-run audit needs it. A canary repeated k
times is one patient with k equal records. Its words are made of syllables and occur in no text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from medflare.auditing.report import AuditModel
from medflare.core.errors import ConfigError, DataError
from medflare.core.inventory import ENTITY_TYPES
from medflare.core.run_record import write_record
from medflare.data.cohort import Cohort
from medflare.data.notes.note_tables import Coverage
from medflare.data.notes.note_writers import notes_row
from medflare.data.records import Entity, Note, Question, Summary
from medflare.data.settings.site import SiteConfig

LIST = "canaries.json"
OTHERS = 31
"""Secrets that might have been a canary's and are not; with its own one 32, so exposure ends at 5 bits."""
KEY_WORDS = 3
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


class Canary(AuditModel):
    """One canary.

    Attributes:
        key: what is asked about; secret: what is to be kept; others: secrets that it might have been.
    """

    name: str = Field(pattern=r"^canary-\d{1,6}$")
    included: bool
    repeat: int = Field(ge=1, le=1000)
    key: str
    secret: str
    others: list[str] = Field(min_length=1)

    def records(self) -> list[str]:
        """Return the ids of its records."""
        return [f"{self.name}-{number}" for number in range(1, self.repeat + 1)]


class CanaryList(AuditModel):
    """The secret list of all canaries; it holds nothing of any patient."""

    schema_version: int = Field(default=1, ge=1, le=1)
    task: str
    canaries: list[Canary] = Field(min_length=2)

    @property
    def record_names(self) -> set[str]:
        """The ids of all records, included or not."""
        return {name for canary in self.canaries for name in canary.records()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryKind:
    """Canaries of one task.

    Attributes:
        format: of the file of records; here: whether a cohort has records of the task.
        words: how many a key has, where so many types of entities are looked for.
        secrets: draws so many different secrets for a key; of notes, with the types that are looked for.
        record: (id, patient, key, secret) -> a record.
        row: a record as the format's line.
    """

    format: str
    here: Callable[[Cohort], bool]
    words: Callable[[int], int]
    secrets: Callable[[random.Random, int, Sequence[str]], list[str]]
    record: Callable[[str, str, str, str], Any]
    row: Callable[[Any], dict[str, Any]]


def _words(rng: random.Random, count: int) -> str:
    syllables = ("".join((rng.choice(CONSONANTS), rng.choice(VOWELS))) for _ in range(3 * count))
    return " ".join("".join(three) for three in zip(*[syllables] * 3, strict=True))


def _texts(rng: random.Random, count: int, types: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[_words(rng, 3)] = None
    return list(found)


def _note_words(types: int) -> int:
    """Return the words of a note in which there are OTHERS + 1 marks of so many types, eight of four."""
    return -(-(OTHERS + 1) // types)


def _marks(rng: random.Random, count: int, types: Sequence[str]) -> list[str]:
    """Draw which word of a note is marked as what: "3 problem"."""
    words = range(_note_words(len(types)))
    return rng.sample([f"{word} {label}" for word in words for label in types], count)


def _note(name: str, patient: str, key: str, secret: str) -> Note:
    place, label = secret.split(" ", 1)
    words = key.split(" ")
    start = len(" ".join([*words[: int(place)], ""]))
    entity = Entity(entity_id="T1", label=label, spans=((start, start + len(words[int(place)])),))
    return Note(note_id=name, patient_id=patient, text=f"{key}.", entities=(entity,))


def _question(name: str, patient: str, key: str, secret: str) -> Question:
    # the other option is the key itself, so that it tells nothing of the secret
    options = (("A", secret), ("B", key)) if sum(map(ord, key)) % 2 else (("A", key), ("B", secret))
    answer = next(letter for letter, text in options if text == secret)
    return Question(question_id=name, text=f"What is recorded for {key}?", options=options, answer=answer)


def _summary(name: str, patient: str, key: str, secret: str) -> Summary:
    return Summary(summary_id=name, patient_id=patient, source=f"Recorded for {key}.", target=f"{secret}.")


KINDS: dict[str, CanaryKind] = {
    "extraction": CanaryKind(
        format="notes_jsonl",
        here=lambda cohort: bool(cohort.notes),
        words=_note_words,
        secrets=_marks,
        record=_note,
        row=notes_row,
    ),
    "questions": CanaryKind(
        format="questions_jsonl",
        here=lambda cohort: bool(cohort.questions),
        words=lambda types: KEY_WORDS,
        secrets=_texts,
        record=_question,
        row=lambda question: {
            "id": question.question_id,
            "question": question.text,
            "options": dict(question.options),
            "answer": question.answer,
            "split": "train",
        },
    ),
    "summaries": CanaryKind(
        format="summaries_jsonl",
        here=lambda cohort: bool(cohort.summaries),
        words=lambda types: KEY_WORDS,
        secrets=_texts,
        record=_summary,
        row=lambda summary: {
            "id": summary.summary_id,
            "patient_id": summary.patient_id,
            "source": summary.source,
            "target": summary.target,
            "split": "train",
        },
    ),
}
"""Task -> its canaries."""


def task_of_cohort(cohort: Cohort) -> str:
    """Return the task whose records a cohort has.

    Raises:
        ConfigError: it has none, or those of several tasks.
    """
    tasks = [task for task, kind in KINDS.items() if kind.here(cohort)]
    if len(tasks) != 1:
        found = ", ".join(tasks) or "none"
        raise ConfigError(
            f"site '{cohort.name}': canaries are for notes, questions or summaries; tasks found: {found}. "
            "Expected records of exactly one."
        )
    return tasks[0]


def make_canaries(
    task: str, count: int, repeats: Sequence[int], rng: random.Random, types: Sequence[str] = ENTITY_TYPES
) -> CanaryList:
    """Return `count` canaries, dealt in turn to the numbers of repetitions, each included by a fair coin.

    Args:
        types: of notes, the types of entities that the site looks for: others are asked about nowhere.

    Raises:
        ConfigError: the site looks for none.
    """
    if not types:
        raise ConfigError("the annotation covers no type of entity that a canary could be marked as.")
    kind, canaries = KINDS[task], []
    for number in range(count):
        secret, *others = kind.secrets(rng, OTHERS + 1, types)
        canaries.append(
            Canary(
                name=f"canary-{number}",
                included=rng.random() < 0.5,
                repeat=repeats[number % len(repeats)],
                key=_words(rng, kind.words(len(types))),
                secret=secret,
                others=others,
            )
        )
    return CanaryList(task=task, canaries=canaries)


def rows_to_insert(canaries: CanaryList) -> list[dict[str, Any]]:
    """Return the lines of the file of included canaries."""
    kind = KINDS[canaries.task]
    return [
        kind.row(kind.record(name, canary.name, canary.key, canary.secret))
        for canary in canaries.canaries
        if canary.included
        for name in canary.records()
    ]


def write_canaries(site: SiteConfig, canaries: CanaryList, out: Path, covers: Coverage | None = None) -> Path:
    """Write the included canaries, a site.yaml that adds them to the site's cohorts, and the secret list.

    Args:
        out: a folder that is not there yet.
        covers: of notes, what the site's annotation covers; the canaries' covers the same.

    Returns:
        The site.yaml.

    Raises:
        ConfigError: the coins included no canary.
    """
    rows = rows_to_insert(canaries)
    if not rows:
        raise ConfigError("no canary was included by its coin; make more of them with --count.")
    document = site.model_dump(mode="json", exclude_unset=True)
    if document.get("backbone", {}).get("folder"):
        document["backbone"].pop("name", None)  # the name stands for the folder, and both are refused
    folder = out.resolve() / "inserted"
    cohort = {"format": KINDS[canaries.task].format, "root": str(folder)}
    document["cohort"].append(cohort | (covers.settings if covers is not None else {}))
    folder.mkdir(parents=True)
    write_record(folder / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_record(out / LIST, canaries.model_dump_json(indent=1) + "\n")
    path = out / "site.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def read_canaries(path: Path) -> CanaryList:
    """Return the list in a file.

    Raises:
        DataError: there is none, or it is no list of canaries.
    """
    try:
        found = CanaryList.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. `medflare cohort canaries` makes one.") from None
    except (ValidationError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no list of canaries: {error}") from None
    if found.task not in KINDS:
        raise DataError(f"{path}: is of task '{found.task}'; expected one of {', '.join(KINDS)}.")
    return found
