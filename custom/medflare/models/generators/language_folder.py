# SPDX-License-Identifier: Apache-2.0
"""The result folders of R2GenGPT and PromptMRG, whose language model stays frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import settings_of_file
from medflare.models.generators.promptmrg import PromptMRG, PromptMRGModelSettings
from medflare.models.generators.r2gengpt import R2GenGPT, R2GenGPTModelSettings
from medflare.models.generators.settings import LanguageModelSearchSettings
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator
from medflare.models.result_files import (
    block_of,
    copy_tensors,
    load_adapter,
    load_base,
    read_json,
    read_tensors,
)

LANGUAGE_WRITERS: dict[str, type[ModelSettings]] = {
    "r2gengpt": R2GenGPTModelSettings,
    "promptmrg": PromptMRGModelSettings,
}
"""Method -> settings of its model, in `<method>.json` and `<method>.safetensors`."""


def open_language_writer(
    folder: Path, method: str, backbone: Path | None, precision: str, device: str
) -> tuple[ReportGenerator, DecodingSettings]:
    """Return the model of a result folder in eval mode, and its decoding.

    PromptMRG comes without reports to retrieve: those of the run's sites stayed there (BL-12).

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: another language model than the run's, or statistics that stayed at the sites.
    """
    described = folder / f"{method}.json"
    facts = read_json(described)
    settings: Any = parse(LANGUAGE_WRITERS[method], block_of(facts, "model", described), str(described))
    if settings.encoder.batch_norm == "local":
        raise ConfigError(
            f"{folder}: was trained with `batch_norm: local`, so the encoder's running statistics stayed at "
            "the sites and the folder alone cannot draft. Train with `batch_norm: average` instead."
        )
    changes: dict[str, Any] = {"encoder": settings.encoder.model_copy(update={"weights": "none"})}
    base = load_base(folder, block_of(facts, "backbone", described), backbone, precision, device)
    model: ReportGenerator
    if method == "promptmrg":
        config = read_json(folder / "adapter_config.json")
        changes["peft"], changes["lora"] = settings_of_file(settings.peft, settings.lora, config)
        model = PromptMRG(base, settings.model_copy(update=changes), 0)
    else:
        model = R2GenGPT(base, settings.model_copy(update=changes), 0)
    model.to(device)
    file = folder / f"{method}.safetensors"
    copy_tensors(model.shared_tensors(), read_tensors(file), file)
    if model.adapters.names:
        load_adapter(model.adapters, folder)
        model.adapters.use((GENERIC,))
    decoding = parse(LanguageModelSearchSettings, block_of(facts, "decoding", described), str(described))
    return model.eval(), decoding
