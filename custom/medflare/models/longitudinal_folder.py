# SPDX-License-Identifier: Apache-2.0
"""Opens what a run of FedTAR made: the report generator of visits, with its adapters in use.

A result folder holds PEFT's two files of the client LoRA, `longitudinal_generator.safetensors` (bridge,
patient adapter, with `train_backbone` all weights) and `longitudinal_generator.json`, which also has the
mixture of patients' profiles that the sites agreed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import settings_of_file
from medflare.models.backbone import Backbone
from medflare.models.longitudinal_generator import (
    FILE,
    PATIENT_PROJECTION,
    LongitudinalGenerator,
    LongitudinalSettings,
    encoder_checksum,
)
from medflare.models.report_generator import DecodingSettings
from medflare.models.result_files import copy_tensors


def open_longitudinal(
    folder: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    adapter: Mapping[str, Tensor],
    config: Mapping[str, Any],
    base: Backbone,
    encoder_file: Path | None = None,
) -> tuple[LongitudinalGenerator, DecodingSettings]:
    """Return the model of a result folder in eval mode on the backbone's device, and its decoding.

    Where W_proj stayed at the sites (TAR-11, `per_client`) no patient gets factors.

    Args:
        facts, tensors, adapter, config: what `longitudinal_generator.json`,
            `longitudinal_generator.safetensors`, `adapter_model.safetensors` and `adapter_config.json` of
            `folder` hold.
        encoder_file: weights of the frozen image encoder, where the run took them from the sites.

    Raises:
        DataError: a tensor is missing.
        ConfigError: the encoder is another one than the run's.
    """
    settings = parse(LongitudinalSettings, facts["generator"], str(folder / f"{FILE}.json"))
    decoding = parse(DecodingSettings, facts["decoding"], str(folder / f"{FILE}.json"))
    model = LongitudinalGenerator(
        base, _as_written(settings, config), int(facts.get("seed", 0)), encoder_file
    )
    model.to(next(base.model.parameters()).device)
    if not any(name.startswith(PATIENT_PROJECTION) for name in tensors):
        model.remove_patient_adapter()
    copy_tensors(model.shared_tensors(), tensors, folder / f"{FILE}.safetensors")
    model.adapters.load_file_tensors(GENERIC, dict(adapter))
    model.adapters.use((GENERIC,))
    if not settings.train_backbone:
        _check_encoder(folder, model, facts)
    if mixture := facts.get("mixture"):
        model.anybody = torch.tensor([mixture["weights"]])
    return model.eval(), decoding


def _as_written(settings: LongitudinalSettings, config: Mapping[str, Any]) -> LongitudinalSettings:
    """With the adapter's sizes as they became, and no weights of an encoder that is among the tensors."""
    model = settings.model
    peft, lora = settings_of_file(model.peft, model.lora, config)
    weights = "none" if settings.train_backbone else model.encoder.weights
    encoder = model.encoder.model_copy(update={"weights": weights})
    changed = model.model_copy(update={"peft": peft, "lora": lora, "encoder": encoder})
    return settings.model_copy(update={"model": changed})


def _check_encoder(folder: Path, model: LongitudinalGenerator, facts: Mapping[str, Any]) -> None:
    checksum, recorded = encoder_checksum(model), str(facts.get("encoder", {}).get("sha256", ""))
    if checksum != recorded:
        raise ConfigError(
            f"{folder}: was trained on the tokens of an image encoder of checksum {recorded[:16]}, and the "
            f"one here has {checksum[:16]}. Name the same weights as 'encoder_weights' in site.yaml."
        )
