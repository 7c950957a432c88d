# SPDX-License-Identifier: Apache-2.0
"""Opens what a run made that answers questions or summarises: a PEFT folder and a file that says how."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from medflare.core.config import parse
from medflare.models.report_result import read_json
from medflare.models.text_model import TextModel
from medflare.models.text_result import ExportedText, open_text_model
from medflare.tasks.questions.questions import Answerer, Scoring
from medflare.tasks.summaries.summaries import Summariser, WritingSettings

QUESTIONS, SUMMARIES = "question_answering", "summarisation"


class ExportedQuestions(ExportedText):
    """The block of question_answering.json."""

    scoring: Scoring
    per_token: bool


class ExportedSummaries(ExportedText):
    """The block of summarisation.json."""

    writing: WritingSettings


Kind = TypeVar("Kind", bound=ExportedText)


def load_answerer(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Answerer:
    """What answers questions, of a result folder with its adapter in use.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.
    Raises: DataError for a missing file; ConfigError where the backbone is not the one of the run.
    """
    model, how = _opened(folder, QUESTIONS, ExportedQuestions, personalised, backbone, precision, device)
    return Answerer(model, how.scoring, how.per_token, how.max_tokens, batch)


def load_summariser(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Summariser:
    """What summarises, of a result folder; arguments and errors as of `load_answerer`."""
    model, how = _opened(folder, SUMMARIES, ExportedSummaries, personalised, backbone, precision, device)
    return Summariser(model, how.writing, how.max_tokens, batch)


def _opened(
    folder: Path,
    task: str,
    kind: type[Kind],
    personalised: Path | None,
    backbone: Path | None,
    precision: str,
    device: str,
) -> tuple[TextModel, Kind]:
    """The backbone with the adapter, and the block of `<task>.json`."""
    file = folder / f"{task}.json"
    facts = read_json(file)
    exported = parse(kind, facts[task], str(file))
    return open_text_model(folder, facts, exported, personalised, backbone, precision, device), exported
