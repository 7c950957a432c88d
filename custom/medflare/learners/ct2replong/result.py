# SPDX-License-Identifier: Apache-2.0
"""A result folder of CT2RepLong at any hospital."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from medflare.core.config import parse
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import open_visits
from medflare.learners.ct2replong.learner import CT2RepLongLearner
from medflare.learners.ct2replong.settings import METHOD, CT2RepLongSettings
from medflare.models.backbone import device_of
from medflare.models.generators.ct2replong import CT2RepLong
from medflare.models.generators.folder import open_writer
from medflare.models.generators.settings import WordSearchSettings
from medflare.models.result_files import read_json


def open_result(
    folder: Path, site: SiteConfig, seed: int = 0, cache: Path | None = None
) -> CT2RepLongLearner:
    """Return the learner of a site with a run's model loaded; it may be a site that took no part.

    Raises:
        DataError, ConfigError: as of `models.generators.folder.open_writer`.
    """
    torch.set_num_threads(site.threads)
    device = device_of(site.device)
    words, precision = site.backbone.folder, site.backbone.precision
    writer, decoding = open_writer(folder, METHOD.name, words, precision, device)
    model = cast(CT2RepLong, writer)  # the class of METHOD.name
    file = folder / METHOD.result_file
    facts = read_json(file)
    parts = {"model": model.settings, "decoding": WordSearchSettings.model_validate(decoding.model_dump())}
    limits = {
        name: facts.get(name) for name in ("visits", "former", "max_former_tokens", "max_report_tokens")
    }
    settings = parse(CT2RepLongSettings, parts | limits, str(file))
    samples = open_visits(site, settings.model.encoder.stored_size, cache)
    learner = CT2RepLongLearner(site.name, samples, model, settings, seed)
    learner.load_shared(learner.initial_shared())
    return learner
