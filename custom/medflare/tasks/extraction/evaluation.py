# SPDX-License-Identifier: Apache-2.0
"""How a site scores its own extraction, during a run and after it (algorithms.md 4.4)."""

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
from medflare.learners.extraction.settings import ExtractionSettings
from medflare.models.text_model import TextModel
from medflare.tasks.extraction.extractor import Asker, Extractor
from medflare.tasks.extraction.tagging_result import open_result
from medflare.tasks.scoring import AdapterKind, Role, evaluation_record, kind_of, of_split, opened


class ExtractionSite(Protocol):
    """What this module needs of a learner that extracts."""

    site: str
    seed: int
    cohort: Cohort
    model: TextModel
    extractor: Extractor
    settings: ExtractionSettings

    def notes(self, split: str) -> list[Note]: ...

    def tested_adapter(self, folder: Path) -> Literal["generic", "personalised"]: ...


def curve_metrics(learner: ExtractionSite, notes: Sequence[Note]) -> dict[str, float]:
    """Point scores on a few notes."""
    if not notes:
        return {}
    return quick_extraction_metrics(learner.extractor.documents(notes, learner.site, "generic"))


def finish_site(learner: ExtractionSite, folder: Path, limit: int | None) -> list[EvaluationRecord]:
    """Test quality of the site's adapter; predictions and, with FedSA-LoRA, the own adapter into `folder`.

    With `sharing: fedsa` the adapter holds the site's own B: it is evaluated as what it is, personalised
    (4.4, pitfall 9).
    """
    kind = learner.tested_adapter(folder)
    notes = learner.notes("test")[:limit]
    if not notes:
        return []
    return [score_notes(learner.extractor, notes, learner.site, "participant", kind, folder, learner.seed)]


def score_notes(
    extractor: Asker,
    notes: Sequence[Note],
    site: str,
    role: Role,
    adapter: AdapterKind,
    folder: Path,
    seed: int = 0,
) -> EvaluationRecord:
    """Extracts from annotated notes, keeps what was found in a file and scores it."""
    documents = extractor.documents(notes, site, adapter)
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
    """Tests a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
    """
    extractor = opened(open_result, result, site, adapter)
    notes = of_split(load_cohort(site).notes, split, site.name, "note")
    return score_notes(extractor, notes, site.name, role, kind_of(adapter), folder, seed)
