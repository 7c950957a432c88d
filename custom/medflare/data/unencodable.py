# SPDX-License-Identifier: Apache-2.0
"""Records with text that is none in UTF-8: left out as they are read, so that they cost no other record.

A file name in another encoding, and `"\\ud800"` in JSON, are lone surrogates in Python, at which hashing,
tokenizing and printing would fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from medflare.data.records import Note, Question, RecordLists, Skipped, Study, Summary

REASON = "not UTF-8"
_LONE = re.compile("[\ud800-\udfff]")
R = TypeVar("R", Study, Note, Question, Summary)


def leave_out_unencodable(source: RecordLists) -> None:
    """Move such records of `source` to `skipped`, whose entries can all be printed then."""
    source.studies = _encodable(source.studies, source.skipped)
    source.notes = _encodable(source.notes, source.skipped)
    source.questions = _encodable(source.questions, source.skipped)
    source.summaries = _encodable(source.summaries, source.skipped)
    source.skipped = [
        replace(item, record=escaped(item.record), detail=escaped(item.detail)) for item in source.skipped
    ]


def _encodable(records: list[R], skipped: list[Skipped]) -> list[R]:
    kept = []
    for record in records:
        where = next((field.name for field in fields(record) if _is_lone(getattr(record, field.name))), None)
        if where is None:
            kept.append(record)
            continue
        name = str(getattr(record, fields(record)[0].name))  # its id
        detail = f"{name}: its {where} holds what is no text; name the file in UTF-8, or mend the character"
        skipped.append(Skipped(record=name, reason=REASON, detail=detail))
    return kept


def _is_lone(value: Any) -> bool:
    """Return whether a lone surrogate stands anywhere in a value of a record."""
    if value is None or isinstance(value, int | float):
        return False
    if isinstance(value, str):
        return not value.isascii() and _LONE.search(value) is not None
    if isinstance(value, Path):
        return _is_lone(str(value))
    if isinstance(value, tuple | list):
        return any(_is_lone(item) for item in value)
    if isinstance(value, Mapping):
        return any(_is_lone(item) for pair in value.items() for item in pair)
    return is_dataclass(value) and any(_is_lone(getattr(value, field.name)) for field in fields(value))


def escaped(text: str) -> str:
    """Return a text with `\\udce9` written out in place of what UTF-8 has not."""
    return text.encode("utf-8", "backslashreplace").decode()
