# SPDX-License-Identifier: Apache-2.0
"""The file of samples that a site's model wrote in the last validation; it stays at the site."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from medflare.core.sample_drafts import SampleDraft, SampleDrafts

NAME = "drafts.json"
"""In the folder of the worker's log."""
LARGEST = 2_000_000
"""Bytes of a file that is read: ten drafts of the longest texts, escaped, have fewer."""


def write_drafts(folder: Path, round_number: int, drafts: Sequence[SampleDraft]) -> None:
    """Replace the file; a full disk must not end the task for it."""
    if not drafts:
        return
    scratch = folder / f".{NAME}.tmp"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        scratch.write_text(
            SampleDrafts(round=round_number, drafts=tuple(drafts)).model_dump_json(), encoding="utf-8"
        )
        os.replace(scratch, folder / NAME)


def read_drafts(folder: Path) -> SampleDrafts | None:
    """Return the samples of the last validation; None where there are none, or the file is damaged."""
    path = folder / NAME
    try:
        if path.stat().st_size > LARGEST:
            return None
        return SampleDrafts.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None
