# SPDX-License-Identifier: Apache-2.0
"""Opens what a run made that answers questions or summarises: a PEFT folder and a file that says how."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from medflare.answering.questions import Answerer, Scoring
from medflare.answering.summaries import Summariser, WritingSettings
from medflare.config import Settings, parse
from medflare.models.adapters import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.peft_methods import LoraChoice, LoraSettings, PeftChoice, as_written, chosen
from medflare.models.result import check_fingerprint, read_json, read_tensors
from medflare.models.text_model import TextModel

QUESTIONS, SUMMARIES = "question_answering", "summarisation"


class Exported(Settings):
    """What every such file says."""

    lora: LoraSettings
    peft: PeftChoice = LoraChoice()
    max_tokens: int


class ExportedQuestions(Exported):
    """The block of question_answering.json."""

    scoring: Scoring
    per_token: bool


class ExportedSummaries(Exported):
    """The block of summarisation.json."""

    writing: WritingSettings


Kind = TypeVar("Kind", bound=Exported)


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
    adapter = personalised or folder
    written = as_written(exported.peft, exported.lora, read_json(adapter / "adapter_config.json"))
    base = load_backbone(backbone, precision, device, "notes_decoder")
    check_fingerprint(folder, facts["backbone"], base)
    model = TextModel(base, chosen(*written), (GENERIC,), 0)
    model.adapters.restore(GENERIC, read_tensors(adapter / "adapter_model.safetensors"))
    model.adapters.use((GENERIC,))
    return model, exported
