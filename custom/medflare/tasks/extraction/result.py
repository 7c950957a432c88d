# SPDX-License-Identifier: Apache-2.0
"""Opens what a Fed-MedLoRA run made: a PEFT folder with `extraction.json` beside it."""

from __future__ import annotations

from pathlib import Path

from medflare.core.config import parse
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.report_result import read_json
from medflare.models.text_model import TextModel
from medflare.models.text_result import ExportedText, open_text_model
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.prompts import Format, wording

FILE = "extraction.json"


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
    """The extractor of a result folder with its adapter in use.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.
    Raises: DataError for a missing file; ConfigError where the backbone is not the one of the run.
    """
    facts = read_json(folder / FILE)
    exported = parse(ExportedExtraction, facts["extraction"], str(folder / FILE))
    model = open_text_model(folder, facts, exported, personalised, backbone, precision, device)
    return _extractor(model, exported, batch)


def base_extractor(
    exported: ExportedExtraction,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Extractor:
    """The frozen model as it is (zero-shot, 7.24): an adapter whose B is zero adds nothing."""
    base = load_backbone(backbone, precision, device, "notes_decoder")
    return _extractor(TextModel(base, exported.lora, (GENERIC,), 0), exported, batch)


def _extractor(model: TextModel, exported: ExportedExtraction, batch: int) -> Extractor:
    words = wording(model.backbone.extraction, exported.format)
    return Extractor(model, words, exported.sentences, exported.max_tokens, batch)
