# SPDX-License-Identifier: Apache-2.0
"""One dataset format per file; `medflare.data.settings.formats.FORMATS` lists them.

A reader module has a function `read(config: CohortConfig) -> SourceRecords`. It raises DataError if a source
cannot be read at all, and lists a single bad record in `SourceRecords.skipped`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from medflare.core.plugins import find_plugin
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Note, Question, Summary
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.formats import FORMATS
from medflare.data.unencodable import leave_out_unencodable


def read_source(config: CohortConfig) -> SourceRecords:
    """Read the files of `config` with the reader of its format; records without text in UTF-8 are left out.

    Raises:
        DataError: the source cannot be read at all.
    """
    source: SourceRecords = _reader(config.format).read(config)
    leave_out_unencodable(source)
    # Readers of studies say themselves whether there is a split.
    texts: list[Note | Question | Summary] = [*source.notes, *source.questions, *source.summaries]
    if texts:
        source.has_split = any(text.split for text in texts)
    return source


def _reader(format: str) -> Any:
    """Return the module that reads a format, of this package or of one that is admitted."""
    if format in FORMATS:
        return import_module(f"medflare.data.readers.{format}")
    return find_plugin("readers", format)
