# SPDX-License-Identifier: Apache-2.0
"""Opens what a Fed-MedLoRA run made: a PEFT folder with `extraction.json` beside it."""

from __future__ import annotations

from pathlib import Path

from medflare.config import Settings, parse
from medflare.extraction.extractor import Extractor
from medflare.extraction.prompts import Format, wording
from medflare.models.adapters import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.peft_methods import LoraChoice, LoraSettings, PeftChoice, as_written, chosen
from medflare.models.result import check_fingerprint, read_json, read_tensors
from medflare.models.text_model import TextModel

FILE = "extraction.json"


class ExportedExtraction(Settings):
    """The `extraction` block of extraction.json."""

    lora: LoraSettings
    peft: PeftChoice = LoraChoice()
    format: Format
    sentences: int
    max_tokens: int


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
    adapter = personalised or folder
    config = read_json(adapter / "adapter_config.json")
    written = as_written(exported.peft, exported.lora, config)
    base = load_backbone(backbone, precision, device, "notes_decoder")
    check_fingerprint(folder, facts["backbone"], base)
    model = TextModel(base, chosen(*written), (GENERIC,), 0)
    model.adapters.restore(GENERIC, read_tensors(adapter / "adapter_model.safetensors"))
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
