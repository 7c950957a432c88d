# SPDX-License-Identifier: Apache-2.0
"""Opens a result folder that extracts from notes: of a language model's adapter, or of a tagger.

A tagger's holds `token_classification.safetensors` (all shared weights) and `token_classification.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError, DataError
from medflare.models.encoder_folder import TextEncoderSettings, load_encoder
from medflare.models.result_files import block_of, check_fingerprint, read_json, read_tensors
from medflare.models.tagger import Tagger
from medflare.tasks.extraction.extractor import TASK, load_extractor
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.extraction.tagging import TaggingExtractor

FILE, EXTRACTOR_FILE = "token_classification.json", f"{TASK}.json"
DRAFTS = "report_generator.json"


class ExportedTagger(Settings):
    """The `tagger` block of token_classification.json."""

    encoder: TextEncoderSettings
    freeze_words: bool
    max_tokens: PositiveInt
    sentences: PositiveInt


def open_result(
    folder: Path, *, personalised: Path | None = None, zero_shot: bool = False, **options: Any
) -> Predictor:
    """Return the predictor of a result folder; its files say which kind it is.

    Args:
        folder: `result/adapter` of a run.
        personalised: a site's own `personalised` folder, used instead of the global adapter.
        zero_shot: as of `load_extractor`.
        options: `backbone`, `precision`, `device`, `batch` as of `load_tagger` and `load_extractor`.

    Raises:
        ConfigError: the folder drafts reports, or a tagger is given a personalised adapter or no training.
        DataError: the folder holds nothing that extracts.
    """
    if (folder / FILE).is_file():
        if personalised is not None:
            raise ConfigError(
                f"{folder}: is a token classification, of which no part is personalised; leave "
                f"{personalised} out."
            )
        if zero_shot:
            raise ConfigError(f"{folder}: is a token classification, which can do nothing without training.")
        return load_tagger(folder, **options)
    if (folder / DRAFTS).is_file():
        raise ConfigError(
            f"{folder}: drafts reports of radiographs (`medflare generate`). Name the result of a run that "
            "extracts from notes, such as one of the job fed_medlora."
        )
    if not (folder / EXTRACTOR_FILE).is_file():
        raise DataError(
            f"{folder}: has neither {EXTRACTOR_FILE} nor {FILE}. Name a finished run that extracts "
            "from notes, or its folder `result/adapter`."
        )
    return load_extractor(folder, personalised=personalised, zero_shot=zero_shot, **options)


def load_tagger(
    folder: Path,
    *,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> TaggingExtractor:
    """Return the tagger of a result folder.

    Args:
        folder: `result/adapter` of a run.
        backbone: the encoder's folder at this site; None for a new encoder's shape.

    Raises:
        DataError: a file or tensor is missing.
        ConfigError: the encoder is not the one of the run.
    """
    facts = read_json(folder / FILE)
    exported = parse(ExportedTagger, block_of(facts, "tagger", folder / FILE), str(folder / FILE))
    text = load_encoder(backbone, precision, device, exported.encoder, 0)
    check_fingerprint(folder, block_of(facts, "backbone", folder / FILE), text)
    tagger = Tagger(text, exported.freeze_words, 0)
    weights = (folder / FILE).with_suffix(".safetensors")
    state = read_tensors(weights)
    wanted = {name: p for name, p in tagger.named_parameters() if p.requires_grad}
    missing = sorted(name for name, p in wanted.items() if name not in state or state[name].shape != p.shape)
    if missing:
        raise DataError(
            f"{weights}: lacks {len(missing)} tensor(s) of the tagger, for instance '{missing[0]}'."
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(state[name])
    tagger.eval()
    return TaggingExtractor(tagger, exported.sentences, exported.max_tokens, batch)
