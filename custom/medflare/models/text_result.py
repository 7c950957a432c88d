# SPDX-License-Identifier: Apache-2.0
"""Opens the text model of a result folder: the frozen backbone with the adapter that a run made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from medflare.core.config import Settings, parse
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraChoice, LoraSettings
from medflare.models.adapters.registry import PeftChoice, effective_settings, settings_of_file
from medflare.models.backbone import load_backbone
from medflare.models.report_result import check_fingerprint, read_json, read_tensors
from medflare.models.text_model import TextModel


class ExportedText(Settings):
    """What the file beside an adapter says of every text task."""

    lora: LoraSettings
    peft: PeftChoice = LoraChoice()
    max_tokens: int


Exported = TypeVar("Exported", bound=ExportedText)


def open_text_result(
    folder: Path,
    task: str,
    block: type[Exported],
    personalised: Path | None,
    backbone: Path | None,
    precision: str,
    device: str,
) -> tuple[TextModel, Exported]:
    """Return the backbone with the adapter in use, and the block `task` of `<task>.json`.

    Arguments and errors as of `open_text_model`.
    """
    file = folder / f"{task}.json"
    facts = read_json(file)
    exported = parse(block, facts[task], str(file))
    return open_text_model(folder, facts, exported, personalised, backbone, precision, device), exported


def open_text_model(
    folder: Path,
    facts: Mapping[str, Any],
    exported: ExportedText,
    personalised: Path | None,
    backbone: Path | None,
    precision: str,
    device: str,
) -> TextModel:
    """Return the backbone with the adapter in use.

    Args:
        folder: `result/adapter` of a run; facts: the file beside it, whose `backbone` must be this one.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        backbone: the frozen model's folder; None for the embedded one.

    Raises: DataError for a missing file; ConfigError where the backbone is not the one of the run.
    """
    adapter = personalised or folder
    written = settings_of_file(exported.peft, exported.lora, read_json(adapter / "adapter_config.json"))
    base = load_backbone(backbone, precision, device, "notes_decoder")
    check_fingerprint(folder, dict(facts["backbone"]), base)
    model = TextModel(base, effective_settings(*written), (GENERIC,), 0)
    model.adapters.load_file_tensors(GENERIC, read_tensors(adapter / "adapter_model.safetensors"))
    model.adapters.use((GENERIC,))
    return model
