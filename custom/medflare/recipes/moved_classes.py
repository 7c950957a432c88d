# SPDX-License-Identifier: Apache-2.0
"""Class paths of earlier releases that stand in job folders and allow-lists, and where the classes are now.

A job folder that was exported before the move, or a site whose allow-list was written before it, names
classes that no longer exist. `python -m medflare.recipes.moved_classes` prints the table as Markdown, for the
CHANGELOG.
"""

from __future__ import annotations

from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.controller import RoundsController, TemporalRoundsController
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.site.executor import LearnerExecutor
from medflare.recipes.allow_list import class_path

MOVED_JOB_CLASSES: dict[str, str] = {
    "medflare.federation.executor.LearnerExecutor": class_path(LearnerExecutor),
    "medflare.federation.controllers.rounds.RoundsController": class_path(RoundsController),
    "medflare.federation.controllers.temporal.TemporalRoundsController": class_path(TemporalRoundsController),
    "medflare.federation.aggregator.ValidatingAggregator": class_path(ValidatingAggregator),
    "medflare.federation.persistor.AdapterPersistor": class_path(AdapterPersistor),
    "medflare.federation.progress.ProgressReporter": class_path(ProgressReporter),
}
"""Old path -> present path of every class that a job folder may name."""
NEW_FOLDER = (
    "Export the job again with this version (python jobs/<job>/job.py --export), or write the new path into "
    "the folder; every site needs the same version of medflare, and an allow-list with the new paths "
    "(medflare kits harden <kit>)"
)


def moved_class(path: str) -> str | None:
    """Return what to do about a class path of an earlier release; None where the path is not one."""
    new = MOVED_JOB_CLASSES.get(path)
    return None if new is None else f"class {path} has moved to {new}. {NEW_FOLDER}"


def as_markdown(table: dict[str, str]) -> str:
    """Return a table of moves as Markdown."""
    rows = ["| before | now |", "| --- | --- |", *(f"| `{old}` | `{new}` |" for old, new in table.items())]
    return "\n".join(rows)


if __name__ == "__main__":
    print(as_markdown(MOVED_JOB_CLASSES))
