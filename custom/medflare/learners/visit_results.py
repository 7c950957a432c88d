# SPDX-License-Identifier: Apache-2.0
"""Scores the result folder of any method of visits: FedTAR's or CT2RepLong's, by the file that lies in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import EvaluationRecord
from medflare.data.settings.site import SiteConfig
from medflare.learners.ct2replong.result import open_result as open_ct2replong
from medflare.learners.ct2replong.settings import METHOD as CT2REPLONG
from medflare.learners.fedtar.evaluation import VisitLearner, finish_site
from medflare.learners.fedtar.result import open_result as open_fedtar
from medflare.tasks.scoring import EVERY_SPLIT, EvaluationOptions, Role


def open_result(folder: Path, site: SiteConfig, seed: int = 0, cache: Path | None = None) -> VisitLearner:
    """Return the learner of a site with a run's model loaded; it may be a site that took no part."""
    if (folder / CT2REPLONG.result_file).is_file():
        return open_ct2replong(folder, site, seed, cache)
    return open_fedtar(folder, site, seed, cache)


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Role,
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
    scorers: Mapping[str, str | Path] | None = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> EvaluationRecord:
    """Score a result folder on a site's split; as `tasks.reports.evaluation.score_result`."""
    if adapter is not None:
        raise ConfigError(f"{adapter}: a result of visits has no site's own adapter; name none.")
    options.refuse_text_options()
    if split == EVERY_SPLIT:
        raise ConfigError("--split all: visits of a patient are tested split by split; name one.")
    learner = open_result(result, site, seed, folder / "cache")
    folder.mkdir(parents=True, exist_ok=True)
    learner.scorers = site.scorers if scorers is None else scorers
    learner.fewest = 1  # what is measured here stays here
    records = finish_site(learner, folder, options.limit, split=split)
    if not records:
        raise DataError(f"site '{site.name}': no visit in the split '{split}': {learner.samples.examples()}.")
    return records[0].model_copy(update={"role": role})
