# SPDX-License-Identifier: Apache-2.0
"""Opens the result folder of a run that summarises."""

from __future__ import annotations

from pathlib import Path

from medflare.models.text_result import ExportedText, open_text_result
from medflare.tasks.summaries.summariser import TASK, Summariser, WritingSettings


class ExportedSummaries(ExportedText):
    """The block of summarisation.json."""

    writing: WritingSettings


def load_summariser(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Summariser:
    """Return the summariser of a result folder, with its adapter in use.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.
        batch: texts of one batch.

    Raises:
        DataError: a file is missing.
        ConfigError: the backbone is not the one of the run.
    """
    model, exported = open_text_result(
        folder, TASK, ExportedSummaries, personalised, backbone, precision, device
    )
    return Summariser(model, exported.writing, exported.max_tokens, batch)
