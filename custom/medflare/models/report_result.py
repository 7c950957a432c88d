# SPDX-License-Identifier: Apache-2.0
"""Opens what a run made: the result folder of a report generator, global or personalised.

A result folder holds PEFT's `adapter_config.json` and `adapter_model.safetensors`, and beside them
`report_generator.json` and `report_generator.safetensors` (encoder, projection, head, prompt rows); that of a
model without an adapter holds all weights in `vit_gpt2.json` and `vit_gpt2.safetensors`, that of FedTAR its
bridge and patient adapter in `longitudinal_generator.json` and `longitudinal_generator.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from medflare.core.config import parse
from medflare.core.errors import ConfigError, DataError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import settings_of_file
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.encoder_folder import TextEncoder
from medflare.models.longitudinal_folder import open_longitudinal
from medflare.models.longitudinal_generator import FILE as VISITS_FILE
from medflare.models.longitudinal_generator import LongitudinalGenerator
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator
from medflare.models.vit_gpt2 import FILE, ViTGPT2
from medflare.models.vit_gpt2_folder import open_vit_gpt2

Drafter = ReportGenerator | ViTGPT2
"""What drafts a report from an image."""


def load_generator(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
) -> tuple[Drafter, DecodingSettings]:
    """Return the model of a result folder with its adapter in use, in eval mode, and its decoding.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        backbone: folder of the model that the run began with; None for the embedded one.
    Raises: DataError for a missing file; ConfigError where the backbone is not the one of the run.
    """
    if (folder / f"{VISITS_FILE}.json").is_file():
        if personalised is not None:
            raise ConfigError(f"{personalised}: a result of FedTAR has no site's own adapter; name none.")
        return load_longitudinal(folder, backbone=backbone, precision=precision, device=device)[:2]
    if (folder / f"{FILE}.json").is_file():
        return _whole_model(folder, personalised, backbone, precision, device)
    facts = read_json(folder / "report_generator.json")
    settings = parse(ModelSettings, facts["model"], str(folder / "report_generator.json"))
    if settings.encoder.batch_norm == "local":
        raise ConfigError(
            f"{folder}: was trained with `batch_norm: local`, so the encoder's running statistics stayed at "
            "the sites and the folder alone cannot draft. Train with `batch_norm: average` instead."
        )
    decoding = parse(DecodingSettings, facts["decoding"], str(folder / "report_generator.json"))
    adapter = personalised or folder
    config = read_json(adapter / "adapter_config.json")
    peft, lora = settings_of_file(settings.peft, settings.lora, config)
    encoder = settings.encoder.model_copy(update={"weights": "none"})
    base = load_backbone(backbone, precision, device)
    check_fingerprint(folder, facts["backbone"], base)
    model = ReportGenerator(
        base, settings.model_copy(update={"lora": lora, "peft": peft, "encoder": encoder}), (GENERIC,), 0
    )
    model.to(device)
    state = read_tensors(folder / "report_generator.safetensors")
    with torch.no_grad():
        for name, tensor in model.shared_tensors().items():
            if name not in state:
                raise DataError(f"{folder / 'report_generator.safetensors'}: lacks the tensor '{name}'.")
            tensor.copy_(state[name])
    model.adapters.load_file_tensors(GENERIC, read_tensors(adapter / "adapter_model.safetensors"))
    model.adapters.use((GENERIC,))
    model.eval()
    return model, decoding


def load_longitudinal(
    folder: Path,
    *,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    encoder_file: Path | None = None,
) -> tuple[LongitudinalGenerator, DecodingSettings, dict[str, Any]]:
    """FedTAR's model, its decoding, and all facts of `longitudinal_generator.json`; errors as in
    `load_generator`."""
    facts = read_json(folder / f"{VISITS_FILE}.json")
    base = load_backbone(backbone, "fp32" if facts["generator"]["train_backbone"] else precision, device)
    check_fingerprint(folder, facts["backbone"], base)
    tensors = read_tensors(folder / f"{VISITS_FILE}.safetensors")
    adapter, config = (
        read_tensors(folder / "adapter_model.safetensors"),
        read_json(folder / "adapter_config.json"),
    )
    model, decoding = open_longitudinal(folder, facts, tensors, adapter, config, base, encoder_file)
    return model, decoding, facts


def _whole_model(
    folder: Path, personalised: Path | None, backbone: Path | None, precision: str, device: str
) -> tuple[ViTGPT2, DecodingSettings]:
    """FedViT-GPT2's model, all of whose weights are shared."""
    if personalised is not None:
        raise ConfigError(
            f"{personalised}: the model of {folder} is the same at every site; name no folder of a site."
        )
    tensors = read_tensors(folder / f"{FILE}.safetensors")
    return open_vit_gpt2(folder, read_json(folder / f"{FILE}.json"), tensors, backbone, precision, device)


def check_fingerprint(folder: Path, recorded: Mapping[str, str], base: Backbone | TextEncoder) -> None:
    """Raise ConfigError unless `base` is the model that a run began with."""
    if base.fingerprint != recorded["fingerprint"]:
        raise ConfigError(
            f"{folder}: was trained on backbone '{recorded['name']}' with fingerprint "
            f"{recorded['fingerprint'][:16]}, but '{base.name}' here has {base.fingerprint[:16]}. "
            f"Give the same weights with --backbone."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of a result folder; DataError when it is missing or no JSON."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(
            f"{path}: there is no such file. Name the folder `result/adapter` of a finished run."
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: is not JSON: {error}.") from None


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Name the folder `result/adapter` of a finished run.")
    return load_file(path)
