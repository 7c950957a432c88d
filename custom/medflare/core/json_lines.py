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
    """Return the records of a file; blank lines are fine.

    Args:
        path: the file.
        model: class of a line.
        what: words for one record in an error message, such as "a prediction".

    Raises:
        DataError: there is no such file, it is not UTF-8, or a line is not a `model`; names file and line.
    """
    items = []
    for number, line in enumerate(text_lines(path), start=1):
        try:
            items += [model.model_validate(json.loads(line))] if line.strip() else []
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: is not JSON ({error.msg} at column {error.colno}).") from None
        except ValidationError as error:
            raise DataError(f"{path}:{number}: is not {what}: {_first_problem(error)}") from None
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits, lists in lists in lists
            raise DataError(f"{path}:{number}: cannot be read ({type(error).__name__}: {error}).") from None
    return items


def text_lines(path: Path) -> list[str]:
    """Return the lines of a file, which end with a line feed and nothing else.

    Raises:
        DataError: there is no such file, or it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError:
        raise DataError(f"{path}: there is no such predictions file.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; a predictions file is.") from None


def _first_problem(error: ValidationError) -> str:
    """Return the first of pydantic's complaints as `field: what`, and how many more there are."""
    first, more = error.errors()[0], error.error_count() - 1
    field = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
    message = first["msg"].removeprefix("Value error, ")
    return f"{field}{message[0].lower()}{message[1:]}{f' (and {more} more)' if more else ''}."
