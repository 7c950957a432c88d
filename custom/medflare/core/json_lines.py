# SPDX-License-Identifier: Apache-2.0
"""Files with one record a line, written whole or not at all and read with the line that is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from medflare.core.errors import DataError
from medflare.core.run_record import Part

Kind = TypeVar("Kind", bound=Part)


def write_lines(path: Path, items: Iterable[Part]) -> Path:
    """Writes the file atomically, one line for each item in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    with scratch.open("w", encoding="utf-8") as out:
        for item in items:
            out.write(item.model_dump_json() + "\n")
    os.replace(scratch, path)
    return path


def read_lines(path: Path, kind: type[Kind], what: str) -> list[Kind]:
    """The items of a file; DataError names it and the first line that is no `what`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such predictions file.") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(kind.model_validate(json.loads(line)))
        except (json.JSONDecodeError, ValidationError) as error:
            raise DataError(f"{path}:{number}: is not {what}: {error}") from None
    return found
