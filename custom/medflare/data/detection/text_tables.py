# SPDX-License-Identifier: Apache-2.0
"""Guess of what a table of texts holds: multiple-choice questions, texts with their summaries, or notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from medflare.core.errors import DataError
from medflare.data.detection.columns import SAMPLED, guess_sites, mean_words, named_columns, values_of
from medflare.data.detection.guess import CohortGuess
from medflare.data.readers import notes_jsonl, questions_jsonl, summaries_jsonl
from medflare.data.readers.fields import parse_integer
from medflare.data.readers.tables import ColumnMap, TableRow, read_table

QUESTION = ("question", "question_text", "stem", "vignette", "frage")
OPTIONS = ("options", "choices", "answer_choices")
OPTION = re.compile(r"^(?:option|opt|op|choice|answer|ans|antwort|réponse)?_?([a-j]|\d)$")
ANSWER = (
    *("answer_idx", "answer", "answer_index", "correct", "correct_answer", "correct_option", "key", "cop"),
    *("richtig", "lösung", "réponse"),
)
SOURCE = ("source", "findings", "finding", "befund", "résultats")
TARGET = ("target", "impression", "impressions", "conclusion", "summary", "beurteilung")
TEXT = ("text", "note", "note_text", "report", "report_text", "transcription", "document", "letter")
ID = ("doc_id", "note_id", "question_id", "summary_id", "document_id", "id", "uid")
LEAST_WORDS = 8
"""Words in the mean of a column of notes; shorter ones are labels or titles."""


def guess_text_tables(paths: Sequence[Path]) -> CohortGuess | None:
    """Return how a folder's tables with one text a row are read; None where none of them holds texts.

    Where they do not all hold the same, or one cannot be read, the first that holds texts is named in `file`.
    """
    guesses = {path: guess for path in paths if (guess := _guess(path)) is not None}
    if not guesses:
        return None
    path, guess = next(iter(guesses.items()))
    alike = {(other.format, str(other.settings.get("columns"))) for other in guesses.values()}
    if len(guesses) < len(paths) or len(alike) > 1:
        return replace(guess, settings={"file": path.name, **guess.settings})
    first = [other.settings["first_index"] for other in guesses.values() if "first_index" in other.settings]
    return replace(guess, settings=guess.settings | ({"first_index": min(first)} if first else {}))


def _guess(path: Path) -> CohortGuess | None:
    try:
        columns, rows, _ = read_table(path)
    except DataError:
        return None
    rows = rows[:SAMPLED]
    for guess in (_questions(columns, rows), _summaries(columns, rows), _notes(columns, rows)):
        if guess is not None:
            reasons = {"format": f"{path.name} has {guess.reasons['format']}"}
            return replace(guess, reasons=guess.reasons | reasons, sites=guess_sites(columns, rows))
    return None


def _named(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column with the first of `names` that there is; case and separators do not count."""
    written = {_plain(column): column for column in reversed(columns)}
    return next((written[name] for name in names if name in written), None)


def _plain(column: str) -> str:
    return re.sub(r"\W+", "_", column.strip().lower())


def _questions(columns: Sequence[str], rows: Sequence[TableRow]) -> CohortGuess | None:
    question, answer = _named(columns, QUESTION), _named(columns, ANSWER)
    options = _options(columns, rows)
    if question is None or answer is None or options is None:
        return None
    chosen = {"question": question, "options": options, "answer": answer}
    settings: dict[str, Any] = {}
    reasons = {"format": "questions with options and an answer"}
    numbers = [parse_integer(str(value)) for value in values_of(answer, rows)]
    found = [number for number in numbers if number is not None]
    if found and len(found) == len(numbers):
        first = min(found)
        settings["first_index"] = 0 if first <= 0 else 1
        reasons["first_index"] = f"the answers are numbers from {first} to {max(found)}"
    return CohortGuess(
        format="questions_jsonl",
        settings=_columns(chosen, questions_jsonl.FIELDS, columns, rows) | settings,
        reasons=reasons,
    )


def _options(columns: Sequence[str], rows: Sequence[TableRow]) -> str | list[str] | None:
    """Return the column that holds all options, or the columns of one option each in their order."""
    together = _named(columns, OPTIONS)
    if together is not None and all(isinstance(value, list | dict) for value in values_of(together, rows)):
        return together
    marks = {mark[1]: column for column in columns if (mark := OPTION.match(_plain(column)))}
    for order in (ascii_lowercase, "123456789", "0123456789"):
        listed = [mark for mark in order if mark in marks]
        if len(listed) >= 2 and listed == list(order[: len(listed)]):
            return [marks[mark] for mark in listed]
    return None


def _summaries(columns: Sequence[str], rows: Sequence[TableRow]) -> CohortGuess | None:
    source, target = _named(columns, SOURCE), _named(columns, TARGET)
    if source is None or target is None:
        return None
    settings = _columns({"source": source, "target": target}, summaries_jsonl.FIELDS, columns, rows)
    reasons = {"format": f"texts ('{source}') with their summaries ('{target}')"}
    return CohortGuess(format="summaries_jsonl", settings=settings, reasons=reasons)


def _notes(columns: Sequence[str], rows: Sequence[TableRow]) -> CohortGuess | None:
    words = {column: mean_words(column, rows) for column in columns}
    text = _named([column for column in columns if words[column] >= LEAST_WORDS], TEXT)
    if text is None:
        return None
    return CohortGuess(
        format="notes_jsonl",
        settings=_columns({"text": text}, notes_jsonl.FIELDS, columns, rows) | {"tasks": []},
        reasons={"format": f"notes without marks ('{text}', {words[text]:.0f} words in the mean)"},
        remarks=("The texts carry no marks: 'tasks: []' reads them for `medflare extract -f`.",),
    )


def _columns(
    chosen: Mapping[str, str | list[str]], fields: ColumnMap, columns: Sequence[str], rows: Sequence[TableRow]
) -> dict[str, Any]:
    """Return the setting `columns`, of the fields whose columns the reader does not find by itself."""
    free = [column for column in columns if column not in chosen.values()]
    found = {name: column for name, column in named_columns(free, rows).items() if name in fields}
    unique = [column for column in free if len(set(map(str, values_of(column, rows)))) == len(rows)]
    if (name := _named(unique, ID)) is not None:
        found["doc_id" if "doc_id" in fields else "id"] = name
    needed = {}
    for field, column in {**found, **chosen}.items():
        default = fields[field]
        tried = default if isinstance(default, list) else [default]
        if column != next((name for name in tried if name in columns), None):
            needed[field] = column
    return {"columns": needed} if needed else {}
