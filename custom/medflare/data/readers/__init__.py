# SPDX-License-Identifier: Apache-2.0
"""One dataset format per file; `medflare.data.settings.formats.FORMATS` lists them.

A reader module has a function `read(config: CohortConfig) -> Source`. It raises DataError when the source as
a whole cannot be read, and lists a single bad record in `Source.skipped`.
"""

from __future__ import annotations

from importlib import import_module

from medflare.data.readers.common import SourceRecords
from medflare.data.settings.cohort import CohortConfig


def read_source(config: CohortConfig) -> SourceRecords:
    """Read the files of `config` with the reader of its format.

    Raises:
        DataError: the source as a whole cannot be read.
    """
    source: SourceRecords = import_module(f"medflare.data.readers.{config.format}").read(config)
    return source
