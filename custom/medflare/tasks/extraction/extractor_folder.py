# SPDX-License-Identifier: Apache-2.0
"""Opens what a Fed-MedLoRA run made: a PEFT folder with `extraction.json` beside it."""

from __future__ import annotations

from pathlib import Path

from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.text_model import TextModel
from medflare.models.text_result import ExportedText, open_text_result
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.prompts import Format, wording

TASK = "extraction"
FILE = f"{TASK}.json"


class ExportedExtraction(ExportedText):
    """The `extraction` block of extraction.json."""

    format: Format
    sentences: int


def load_extractor(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Extractor:
    """Return the extractor of a result folder with its adapter in use.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.
    Raises: DataError for a missing file; ConfigError where the backbone is not the one of the run.
    """
    model, exported = open_text_result(
        folder, TASK, ExportedExtraction, personalised, backbone, precision, device
    )
    return _extractor(model, exported, batch)


def base_extractor(
    exported: ExportedExtraction,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Extractor:
    """Return a zero-shot extractor of the frozen model: its adapter has B = 0 and adds nothing."""
    base = load_backbone(backbone, precision, device, "notes_decoder")
    return _extractor(TextModel(base, exported.lora, (GENERIC,), 0), exported, batch)


def _extractor(model: TextModel, exported: ExportedExtraction, batch: int) -> Extractor:
    words = wording(model.backbone.extraction, exported.format)
    return Extractor(model, words, exported.sentences, exported.max_tokens, batch)
