# SPDX-License-Identifier: Apache-2.0
"""One dataset format per file; a new format is one file and one line in FORMATS.

A reader module has a function `read(config: CohortConfig) -> Source` and a constant SETTINGS, the ones of
OPTIONAL that it reads (any other is refused, so that no setting is silently without effect). `read` raises
DataError when the source as a whole cannot be read, and lists a single bad record in `Source.skipped`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from medflare.data.readers.common import Source
    from medflare.data.site_settings import CohortConfig

FORMATS: dict[str, str] = {
    "manifest": "medflare.data.readers.manifest",
    "r2gen": "medflare.data.readers.r2gen",
    "mimic_cxr": "medflare.data.readers.mimic_cxr",
    "iu_xray": "medflare.data.readers.iu_xray",
    "chexpert_plus": "medflare.data.readers.chexpert_plus",
    "notes_jsonl": "medflare.data.readers.notes_jsonl",
    "brat": "medflare.data.readers.brat",
    "i2b2_2010": "medflare.data.readers.i2b2_2010",
    "conll": "medflare.data.readers.conll",
    "questions_jsonl": "medflare.data.readers.questions_jsonl",
    "summaries_jsonl": "medflare.data.readers.summaries_jsonl",
}

OPTIONAL = frozenset(
    {
        *("file", "columns", "select", "sections", "reports", "label_map", "tasks", "annotated"),
        *("visits", "demographics", "first_index", "most_masks"),
    }
)
"""Settings of a cohort that only some formats can obey."""


def settings_of(name: str) -> frozenset[str]:
    """The optional settings that a format reads."""
    settings: frozenset[str] = import_module(FORMATS[name]).SETTINGS
    return settings


def read_source(config: CohortConfig) -> Source:
    """Reads the files of `config` with the reader of its format."""
    source: Source = import_module(FORMATS[config.format]).read(config)
    return source
