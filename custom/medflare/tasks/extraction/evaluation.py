# SPDX-License-Identifier: Apache-2.0
"""How a site scores its own extraction, during a run and after it ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from medflare.core.run_record import EvaluationRecord
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_metrics import evaluate_extraction, quick_extraction_metrics
from medflare.evaluation.extraction_predictions import write_documents
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.extraction.result_folder import open_result
from medflare.tasks.scoring import (
    AdapterKind,
    Role,
    adapter_kind,
    evaluation_record,
    open_on_site,
    records_of_split,
)


class ExtractionSite(Protocol):
    """What this module needs of a learner that extracts."""

    site: str
    seed: int
    cohort: Cohort

    @property
    def extractor(self) -> Predictor: ...

    def notes(self, split: str) -> list[Note]: ...

    def tested_adapter(self, folder: Path) -> Literal["generic", "personalised"]: ...


def curve_metrics(learner: ExtractionSite, notes: Sequence[Note]) -> dict[str, float]:
    """Return point scores on a few notes, for the curves of a run."""
    if not notes:
        return {}
    return quick_extraction_metrics(learner.extractor.documents(notes, learner.site, "generic"))


def finish_site(learner: ExtractionSite, folder: Path, limit: int | None) -> list[EvaluationRecord]:
    """Score the site's adapter on its test notes; write predictions, and a site's own factor, into `folder`.

    With `sharing: fedsa` the adapter holds the site's own B, so it is evaluated as personalised.
    """
    kind = learner.tested_adapter(folder)
    notes = learner.notes("test")[:limit]
    if not notes:
        return []
    return [score_notes(learner.extractor, notes, learner.site, "participant", kind, folder, learner.seed)]


def score_notes(
    predictor: Predictor,
    notes: Sequence[Note],
    site: str,
    role: Role,
    adapter: AdapterKind,
    folder: Path,
    seed: int = 0,
) -> EvaluationRecord:
    """Extract from annotated notes, write the predictions to a file and score them."""
    documents = predictor.documents(notes, site, adapter)
    path = write_documents(folder / f"predictions_{adapter}.jsonl", documents)
    scored = evaluate_extraction(documents, seed=seed)
    return evaluation_record(scored, path, len(documents), site, role, adapter)


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Role,
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
) -> EvaluationRecord:
    """Score a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
    """
    predictor = open_on_site(open_result, result, site, adapter)
    notes = records_of_split(load_cohort(site).notes, split, site.name, "note")
    return score_notes(predictor, notes, site.name, role, adapter_kind(adapter), folder, seed)
