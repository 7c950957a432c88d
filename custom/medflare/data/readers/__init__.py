# SPDX-License-Identifier: Apache-2.0
"""One dataset format per file; `medflare.data.settings.formats.FORMATS` lists them.

A reader module has a function `read(config: CohortConfig) -> SourceRecords`. It raises DataError if a source
cannot be read at all, and lists a single bad record in `SourceRecords.skipped`.
"""

from __future__ import annotations

from importlib import import_module

from medflare.data.readers.common import SourceRecords
from medflare.data.records import Note, Question, Summary
from medflare.data.settings.cohort import CohortConfig


def read_source(config: CohortConfig) -> SourceRecords:
    """Read the files of `config` with the reader of its format.

    Raises:
        DataError: the source cannot be read at all.
    """
    source: SourceRecords = import_module(f"medflare.data.readers.{config.format}").read(config)
    # Of texts every one must name its split, else all get new ones; readers of studies say it themselves.
    texts: list[Note | Question | Summary] = [*source.notes, *source.questions, *source.summaries]
    if texts:
        source.has_split = all(text.split for text in texts)
    return source
