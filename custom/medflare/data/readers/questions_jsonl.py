# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice questions, one a row of JSON lines or CSV, with the columns of MedQA and MedMCQA.

Columns: question, options (letter -> text, or a list of texts), answer (a letter, the right option's text, or
its number, see `first_index`); optional id, split, and group (else `site` or `subject_name`). Options in
columns of their own are named as a list: `columns: {options: [opa, opb, opc, opd]}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from medflare.data.readers.common import SourceRecords
from medflare.data.readers.fields import parse_integer
from medflare.data.readers.tables import ColumnMap
from medflare.data.readers.text_rows import TextRow, shorten, text_rows
from medflare.data.records import Question, RecordError
from medflare.data.settings.cohort import CohortConfig

FIELDS: ColumnMap = {
    "id": ["id", "question_id"],
    "question": "question",
    "options": "options",
    "answer": ["answer_idx", "answer"],
    "split": "split",
    "group": ["group", "site", "subject_name"],
}
REQUIRED = ("question", "options", "answer")

Options = tuple[tuple[str, str], ...]


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or the tables of `config.root`."""
    source = SourceRecords()
    for row in text_rows(config, FIELDS, REQUIRED, source):
        with source.skipping(row.record):
            source.questions.append(_question(row, config.first_index))
    return source


def _question(row: TextRow, first_index: int | None) -> Question:
    text = row.words("question")
    options = _options(_given(row), row.where)
    return Question(
        question_id=row.record,
        text=text,
        options=options,
        answer=_answer(row, options, first_index),
        split=row.split,
        group=row.text("group"),
    )


def _given(row: TextRow) -> Any:
    """Return the row's options: one column with all of them, or as many columns as there are options."""
    names = row.table.names("options")
    return row.row.get(names[0]) if len(names) == 1 else [row.row.get(name) for name in names]


def _options(given: Any, where: str) -> Options:
    """Return (letter, text) of the options with words; RecordError for fewer than two, or two alike."""
    if isinstance(given, Mapping):
        listed = [(str(letter).strip(), value) for letter, value in given.items()]
    elif isinstance(given, list) and len(given) <= len(ascii_uppercase):
        listed = list(zip(ascii_uppercase, given, strict=False))
    else:
        detail = f"{where}: expected letter -> text or a list of texts; found {shorten(given)}"
        raise RecordError("malformed options", detail)
    texts = [(letter, " ".join(str(value).split())) for letter, value in listed if value is not None]
    options = tuple((letter, text) for letter, text in texts if text)
    if len(options) < 2:
        raise RecordError("too few options", f"{where}: expected two or more; found {shorten(given)}")
    counts = Counter(text for _, text in options)
    if repeated := [text for text, count in counts.items() if count > 1]:
        raise RecordError("repeated option", f"{where}: {shorten(repeated[0])} stands at two letters")
    return options


def _answer(row: TextRow, options: Options, first_index: int | None) -> str:
    """Return the letter of the right option; RecordError where the answer is none of them."""
    given, letters = row.text("answer"), [letter for letter, _ in options]
    by_case = {letter.upper(): letter for letter in letters}
    if given.upper() in by_case:
        return by_case[given.upper()]
    number = parse_integer(given)
    if number is not None and first_index is not None:
        if 0 <= number - first_index < len(options):
            return letters[number - first_index]
    elif number is None:
        matches = [letter for letter, text in options if text == " ".join(given.split())]
        if matches:
            return matches[0]
    hint = ""
    if number is not None and first_index is None:
        hint = "; if answers are numbers, say in site.yaml whether they begin with 0 or 1: first_index"
    detail = f"{row.where}: {shorten(given)} is none of {', '.join(letters)}{hint}"
    raise RecordError("answer not among options", detail)
