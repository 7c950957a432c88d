# SPDX-License-Identifier: Apache-2.0
"""The file that says how far a worker's running task is; it lies at the site and is there while one runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "progress.json"
"""In the folder of the worker's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """Progress of a task.

    Attributes:
        task: its name in the protocol, `fit` for instance.
        counted: what is counted: "steps", "images read", "reports drafted".
        done, total: of these; total 0 where nothing is counted yet.
    """

    task: str
    counted: str = ""
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        if not self.total:
            return _WORDS.get(self.task, self.task)
        if self.counted == "steps":
            return f"step {self.done} of {self.total}"
        return f"{self.done} of {self.total} {self.counted}"


_WORDS = {
    "prepare": "loads model and data",
    "initialise": "gives first values",
    "sketch": "sketches its knowledge",
    "fit": "trains",
    "evaluate": "validates",
    "finish": "final test",
}


def write_progress(folder: Path, progress: TaskProgress) -> None:
    """Replace the file; a full disk must not end the task for it."""
    scratch = folder / f".{NAME}.tmp"
    with suppress(OSError):
        scratch.write_text(json.dumps(asdict(progress)), encoding="utf-8")
        os.replace(scratch, folder / NAME)


def read_progress(folder: Path) -> TaskProgress | None:
    """Return how far the task is; None where none runs."""
    try:
        return TaskProgress(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def forget_progress(folder: Path) -> None:
    """Remove the file: the task is done."""
    with suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)
