# SPDX-License-Identifier: Apache-2.0
"""Opens a result folder that extracts from notes: of a language model's adapter, or of a tagger.

A tagger's holds `token_classification.safetensors` (all shared weights) and `token_classification.json`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError, DataError
from medflare.models.encoder_folder import EncoderSettings, load_encoder
from medflare.models.report_result import check_fingerprint, read_json, read_tensors
from medflare.models.tagger import Tagger
from medflare.tasks.extraction import extractor_folder
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.extraction.tagging import TaggingExtractor

FILE = "token_classification.json"
DRAFTS = "report_generator.json"


class ExportedTagger(Settings):
    """The `tagger` block of token_classification.json."""

    encoder: EncoderSettings
    freeze_words: bool
    max_tokens: int
    sentences: int


def open_result(
    folder: Path,
    *,
    personalised: Path | None = None,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 32,
) -> Predictor:
    """Return the predictor of a result folder; its files say which kind it is.

    Args: see `extractor_folder.load_extractor`; `backbone` is the encoder's folder where that is a tagger's.
    Raises: ConfigError where the folder drafts reports, or a tagger is given a personalised adapter;
        DataError where the folder holds nothing that extracts.
    """
    if (folder / FILE).is_file():
        if personalised is not None:
            raise ConfigError(
                f"{folder}: is a token classification, of which no part is personalised; leave "
                f"{personalised} out."
            )
        return load_tagger(folder, backbone=backbone, precision=precision, device=device, batch=batch)
    if (folder / DRAFTS).is_file():
        raise ConfigError(
            f"{folder}: drafts reports of radiographs (`medflare generate`). Name the result of a run that "
            "extracts from notes, such as one of the job fed_medlora."
        )
    if not (folder / extractor_folder.FILE).is_file():
        raise DataError(
            f"{folder}: has neither {extractor_folder.FILE} nor {FILE}. Name a finished run that extracts "
            "from notes, or its folder `result/adapter`."
        )
    return extractor_folder.load_extractor(
        folder,
        personalised=personalised,
        backbone=backbone,
        precision=precision,
        device=device,
        batch=batch,
    )


def load_tagger(
    folder: Path,
    *,
    backbone: Path | None = None,
    precision: str = "auto",
    device: str = "cpu",
    batch: int = 64,
) -> TaggingExtractor:
    """Return the tagger of a result folder.

    Args:
        folder: `result/adapter` of a run.
        backbone: the encoder's folder at this site; None for a new encoder's shape.
    Raises: DataError for a missing file or tensor; ConfigError where the encoder is not the one of the run.
    """
    facts = read_json(folder / FILE)
    exported = parse(ExportedTagger, facts["tagger"], str(folder / FILE))
    text = load_encoder(backbone, precision, device, exported.encoder, 0)
    check_fingerprint(folder, facts["backbone"], text)
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
