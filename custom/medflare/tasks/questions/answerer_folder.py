# SPDX-License-Identifier: Apache-2.0
"""Opens the result folder of a run that answers questions."""

from __future__ import annotations

from pathlib import Path

from medflare.models.text_result import ExportedText, open_text_result
from medflare.tasks.questions.answerer import TASK, Answerer, Scoring


class ExportedQuestions(ExportedText):
    """The block of question_answering.json."""

    scoring: Scoring
    per_token: bool


def load_answerer(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Answerer:
    """Return the answerer of a result folder, with its adapter in use.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.
        batch: questions of one batch.

    Raises:
        DataError: a file is missing.
        ConfigError: the backbone is not the one of the run.
    """
    model, exported = open_text_result(
        folder, TASK, ExportedQuestions, personalised, backbone, precision, device
    )
    return Answerer(model, exported.scoring, exported.per_token, exported.max_tokens, batch)
