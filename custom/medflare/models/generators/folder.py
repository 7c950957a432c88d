# SPDX-License-Identifier: Apache-2.0
"""The result folder of a generator with a vocabulary of its own: what is written, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.models.encoder_folder import trained_precision
from medflare.models.generators.ct2replong import CT2RepLong
from medflare.models.generators.dcl import DCL
from medflare.models.generators.settings import (
    CT2RepLongModelSettings,
    DCLModelSettings,
    TransformerSettings,
    WordSearchSettings,
)
from medflare.models.generators.writing import ReportVocabulary, ReportWriter, VocabularyWriter
from medflare.models.report_generator import DecodingSettings
from medflare.models.result_files import block_of, copy_tensors, read_json, read_tensors

WRITERS: dict[str, tuple[type[Settings], Callable[..., VocabularyWriter]]] = {
    **dict.fromkeys(("transformer", "r2gen", "wcl"), (TransformerSettings, ReportWriter)),
    "dcl": (DCLModelSettings, DCL),
    "ct2replong": (CT2RepLongModelSettings, CT2RepLong),
}
"""Method -> settings and class of its model, in `<method>.json` and `<method>.safetensors`."""


def export_settings(model: VocabularyWriter, method: str, decoding: DecodingSettings) -> dict[str, Any]:
    """Return what a reader needs besides tensors to rebuild the model, and the name of its file."""
    return {
        "file": method,
        "format": 1,
        "model": model.settings.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"),
        "backbone": {"name": model.name, "fingerprint": model.fingerprint},
    }


def open_writer(
    folder: Path, method: str, vocabulary: Path | None, precision: str, device: str
) -> tuple[VocabularyWriter, DecodingSettings]:
    """Return the model of a result folder in eval mode, and its decoding.

    Args:
        vocabulary: the folder of the tokenizer that the run's sites had; None for ours.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: another vocabulary than the run's, or statistics that stayed at the sites.
    """
    described = folder / f"{method}.json"
    facts = read_json(described)
    shape, writer = WRITERS[method]
    settings: Any = parse(shape, block_of(facts, "model", described), str(described))
    if settings.model_dump()["encoder"].get("batch_norm") == "local":
        raise ConfigError(
            f"{folder}: was trained with `batch_norm: local`, so the encoder's running statistics stayed at "
            "the sites and the folder alone cannot draft. Train with `batch_norm: average` instead."
        )
    recorded = block_of(facts, "backbone", described)
    chosen = trained_precision(precision, device, method)
    encoder = settings.encoder.model_copy(
        update={"weights": "none"} if "weights" in type(settings.encoder).model_fields else {}
    )
    words = ReportVocabulary(vocabulary)
    model = writer(settings.model_copy(update={"encoder": encoder}), words, chosen, 0)
    model.settings = settings
    if model.fingerprint != recorded.get("fingerprint"):
        raise ConfigError(
            f"{folder}: was trained with the vocabulary '{recorded.get('name')}' (fingerprint "
            f"{str(recorded.get('fingerprint'))[:16]}), but '{words.name}' here gives "
            f"{model.fingerprint[:16]}. Give the run's tokenizer folder with --backbone."
        )
    file = folder / f"{method}.safetensors"
    copy_tensors(model.shared_tensors(), read_tensors(file), file)
    decoding = parse(WordSearchSettings, block_of(facts, "decoding", described), str(described))
    return model.to(device).eval(), decoding
