# SPDX-License-Identifier: Apache-2.0
"""JSON Lines files of records: one record per line, written atomically and validated on reading."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from medflare.core.errors import DataError
from medflare.core.run_record import RecordModel

Model = TypeVar("Model", bound=RecordModel)


def write_lines(path: Path, items: Iterable[RecordModel]) -> Path:
    """Write the file atomically, one line for each item in the order given, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    with scratch.open("w", encoding="utf-8") as out:
        for item in items:
            out.write(item.model_dump_json() + "\n")
    os.replace(scratch, path)
    return path


def read_lines(path: Path, model: type[Model], what: str) -> list[Model]:
    """Return the records of a file.

    Args:
        path: the file.
        model: class of a line.
        what: words for one record in an error message, such as "a prediction".

    Raises:
        DataError: there is no such file, or a line is not a `model`; names the file and that line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such predictions file.") from None
    items = []
    for number, line in enumerate(lines, start=1):
        try:
            items.append(model.model_validate(json.loads(line)))
        except (json.JSONDecodeError, ValidationError) as error:
            raise DataError(f"{path}:{number}: is not {what}: {error}") from None
    return items
