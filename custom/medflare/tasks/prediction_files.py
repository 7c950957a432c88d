# SPDX-License-Identifier: Apache-2.0
"""Files of predictions: one JSON object per test record of a site.

They hold reports, notes or questions, so they stay where these are; a run record has their relative paths.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from medflare.core.errors import DataError
from medflare.core.json_lines import read_lines, text_lines
from medflare.evaluation.extraction_predictions import KIND, ScoredDocument
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.question_metrics import AnsweredQuestion
from medflare.evaluation.summary_metrics import WrittenSummary

read_predictions = partial(read_lines, model=Prediction, what="a prediction")
read_answers = partial(read_lines, model=AnsweredQuestion, what="an answered question")
read_summaries = partial(read_lines, model=WrittenSummary, what="a summary")


def read_documents(path: Path) -> list[ScoredDocument]:
    """Return the notes of a predictions file.

    Raises:
        DataError: the file cannot be read, holds no note, or a line is none; names the line and its problem.
    """
    documents = read_lines(path, ScoredDocument, "an extraction prediction")
    if not documents:
        raise DataError(f"{path}: holds no note. Expected one JSON object per line.")
    return documents


def holds_extraction(path: Path) -> bool:
    """Return whether the first line of `path` says that it is a file of extraction predictions."""
    try:
        row = json.loads(next((line for line in text_lines(path) if line.strip()), ""))
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and row.get("kind") == KIND


def relative_image(image: Path, predictions: Path) -> str:
    """Return the entry for `Prediction.image` of an image on this machine, in that file of predictions."""
    return Path(os.path.relpath(image, predictions.parent)).as_posix()
