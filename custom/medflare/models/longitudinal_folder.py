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
from pydantic import Field, NonNegativeInt
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.hints import MixtureHint
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
from medflare.models.result_files import ResultFacts, copy_tensors, load_adapter


class LongitudinalFacts(ResultFacts):
    """Contents of longitudinal_generator.json.

    Attributes:
        settings: of the method, as the run had them.
    """

    generator: LongitudinalSettings
    decoding: DecodingSettings
    settings: dict[str, Any] = Field(default_factory=dict)
    seed: NonNegativeInt = 0
    encoder: dict[str, str] = Field(default_factory=dict)
    mixture: MixtureHint | None = None


def open_longitudinal(
    folder: Path,
    facts: LongitudinalFacts,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    base: Backbone,
    encoder_file: Path | None = None,
) -> tuple[LongitudinalGenerator, DecodingSettings]:
    """Return the model of a result folder in eval mode on the backbone's device, and its decoding.

    Where W_proj stayed at the sites (TAR-11, `per_client`) no patient gets factors.

    Args:
        facts, tensors, config: what `longitudinal_generator.json`, `longitudinal_generator.safetensors` and
            `adapter_config.json` of `folder` hold.
        encoder_file: weights of the frozen image encoder, where the run took them from the sites.

    Raises:
        DataError: a tensor is missing.
        ConfigError: the encoder is another one than the run's.
    """
    settings = facts.generator
    model = LongitudinalGenerator(base, _as_written(settings, config), facts.seed, encoder_file)
    model.to(next(base.model.parameters()).device)
    if not any(name.startswith(PATIENT_PROJECTION) for name in tensors):
        model.remove_patient_adapter()
    copy_tensors(model.shared_tensors(), tensors, folder / f"{FILE}.safetensors")
    load_adapter(model.adapters, folder)
    if not settings.train_backbone:
        _check_encoder(folder, model, facts)
    if facts.mixture is not None:
        model.anybody = torch.tensor([facts.mixture.weights])
    return model.eval(), facts.decoding


def _as_written(settings: LongitudinalSettings, config: Mapping[str, Any]) -> LongitudinalSettings:
    """With the adapter's sizes as they became, and no weights of an encoder that is among the tensors."""
    model = settings.model
    peft, lora = settings_of_file(model.peft, model.lora, config)
    weights = "none" if settings.train_backbone else model.encoder.weights
    encoder = model.encoder.model_copy(update={"weights": weights})
    changed = model.model_copy(update={"peft": peft, "lora": lora, "encoder": encoder})
    return settings.model_copy(update={"model": changed})


def _check_encoder(folder: Path, model: LongitudinalGenerator, facts: LongitudinalFacts) -> None:
    checksum, recorded = encoder_checksum(model), facts.encoder.get("sha256", "")
    if checksum != recorded:
        raise ConfigError(
            f"{folder}: was trained on the tokens of an image encoder of checksum {recorded[:16]}, and the "
            f"one here has {checksum[:16]}. Name the same weights as 'encoder_weights' in site.yaml."
        )
