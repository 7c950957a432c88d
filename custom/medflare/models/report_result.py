# SPDX-License-Identifier: Apache-2.0
"""Opens what a run made: the result folder of a report generator, global or personalised.

A result folder holds PEFT's `adapter_config.json` and `adapter_model.safetensors`, and beside them
`report_generator.json` and `report_generator.safetensors` (encoder, projection, head, prompt rows); that of a
model without an adapter holds all weights in two files named after its method (`vit_gpt2.json` and
`vit_gpt2.safetensors`, `r2gen.json` and `r2gen.safetensors`, ...), that of FedTAR its
bridge and patient adapter in `longitudinal_generator.json` and `longitudinal_generator.safetensors`.
"""

from __future__ import annotations

from pathlib import Path

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.registry import settings_of_file
from medflare.models.generators.folder import WRITERS, open_writer
from medflare.models.generators.language_folder import LANGUAGE_WRITERS, open_language_writer
from medflare.models.generators.writing import VocabularyWriter
from medflare.models.longitudinal_folder import LongitudinalFacts, open_longitudinal
from medflare.models.longitudinal_generator import FILE as VISITS_FILE
from medflare.models.longitudinal_generator import LongitudinalGenerator
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator
from medflare.models.result_files import (
    block_of,
    copy_tensors,
    load_adapter,
    load_base,
    read_json,
    read_tensors,
)
from medflare.models.vit_gpt2 import FILE, ViTGPT2
from medflare.models.vit_gpt2_folder import open_vit_gpt2

Drafter = ReportGenerator | ViTGPT2 | VocabularyWriter
"""Model that drafts a report from an image."""


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

    Raises:
        DataError: a file is missing.
        ConfigError: the backbone is not the one of the run.
    """
    if (folder / f"{VISITS_FILE}.json").is_file():
        if personalised is not None:
            raise ConfigError(f"{personalised}: a result of FedTAR has no site's own adapter; name none.")
        return load_longitudinal(folder, backbone=backbone, precision=precision, device=device)[:2]
    if (folder / f"{FILE}.json").is_file():
        return _load_vit_gpt2(folder, personalised, backbone, precision, device)
    if written := next((name for name in WRITERS if (folder / f"{name}.json").is_file()), None):
        _no_own_adapter(folder, personalised)
        return open_writer(folder, written, backbone, precision, device)
    if written := next((name for name in LANGUAGE_WRITERS if (folder / f"{name}.json").is_file()), None):
        _no_own_adapter(folder, personalised)
        return open_language_writer(folder, written, backbone, precision, device)
    described = folder / "report_generator.json"
    facts = read_json(described)
    settings = parse(ModelSettings, block_of(facts, "model", described), str(described))
    if settings.encoder.batch_norm == "local":
        raise ConfigError(
            f"{folder}: was trained with `batch_norm: local`, so the encoder's running statistics stayed at "
            "the sites and the folder alone cannot draft. Train with `batch_norm: average` instead."
        )
    decoding = parse(DecodingSettings, block_of(facts, "decoding", described), str(described))
    adapter = personalised or folder
    config = read_json(adapter / "adapter_config.json")
    peft, lora = settings_of_file(settings.peft, settings.lora, config)
    encoder = settings.encoder.model_copy(update={"weights": "none"})
    base = load_base(folder, block_of(facts, "backbone", described), backbone, precision, device)
    model = ReportGenerator(
        base, settings.model_copy(update={"lora": lora, "peft": peft, "encoder": encoder}), (GENERIC,), 0
    )
    model.to(device)
    file = folder / "report_generator.safetensors"
    copy_tensors(model.shared_tensors(), read_tensors(file), file)
    load_adapter(model.adapters, adapter)
    model.eval()
    return model, decoding


def load_longitudinal(
    folder: Path,
    *,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    encoder_file: Path | None = None,
) -> tuple[LongitudinalGenerator, DecodingSettings, LongitudinalFacts]:
    """Return FedTAR's model, its decoding, and all facts of `longitudinal_generator.json`.

    Raises:
        DataError, ConfigError: as `load_generator`.
    """
    described = folder / f"{VISITS_FILE}.json"
    facts = parse(LongitudinalFacts, read_json(described), str(described))
    needed = "fp32" if facts.generator.train_backbone else precision
    base = load_base(folder, facts.backbone, backbone, needed, device)
    tensors = read_tensors(folder / f"{VISITS_FILE}.safetensors")
    config = read_json(folder / "adapter_config.json")
    model, decoding = open_longitudinal(folder, facts, tensors, config, base, encoder_file)
    return model, decoding, facts


def _load_vit_gpt2(
    folder: Path, personalised: Path | None, backbone: Path | None, precision: str, device: str
) -> tuple[ViTGPT2, DecodingSettings]:
    """Return FedViT-GPT2's model, all of whose weights are shared."""
    _no_own_adapter(folder, personalised)
    tensors = read_tensors(folder / f"{FILE}.safetensors")
    return open_vit_gpt2(folder, read_json(folder / f"{FILE}.json"), tensors, backbone, precision, device)


def _no_own_adapter(folder: Path, personalised: Path | None) -> None:
    if personalised is not None:
        raise ConfigError(
            f"{personalised}: the model of {folder} is the same at every site; name no folder of a site."
        )
