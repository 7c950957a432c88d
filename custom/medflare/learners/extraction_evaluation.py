# SPDX-License-Identifier: Apache-2.0
"""How a site scores its own extraction, during a run and after it (algorithms.md 4.4)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from safetensors.torch import save_file

from medflare.cohort.records import Note
from medflare.cohort.site import Cohort, SiteConfig, load_cohort
from medflare.errors import DataError
from medflare.evaluation.extraction_metrics import evaluate_extraction, quick_extraction_metrics
from medflare.evaluation.extraction_predictions import write_documents
from medflare.evaluation.run_record import EvaluationRecord
from medflare.extraction.extractor import Asker, Extractor
from medflare.extraction.tagging_result import open_result
from medflare.learners.extraction_settings import ExtractionSettings
from medflare.models.adapters import GENERIC
from medflare.models.backbone import device_of
from medflare.models.text_model import TextModel

AdapterKind = Literal["generic", "personalised", "none"]


class ExtractionSite(Protocol):
    """What this module needs of a learner that extracts."""

    site: str
    seed: int
    cohort: Cohort
    model: TextModel
    extractor: Extractor
    settings: ExtractionSettings

    def notes(self, split: str) -> list[Note]: ...


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
    own = learner.settings.sharing == "fedsa"
    if own:
        write_personalised(learner, folder / "personalised")
    notes = learner.notes("test")[:limit]
    if not notes:
        return []
    kind: AdapterKind = "personalised" if own else "generic"
    return [score_notes(learner.extractor, notes, learner.site, "participant", kind, folder, learner.seed)]


def score_notes(
    extractor: Asker,
    notes: Sequence[Note],
    site: str,
    role: Literal["participant", "unseen"],
    adapter: AdapterKind,
    folder: Path,
    seed: int = 0,
) -> EvaluationRecord:
    """Extracts from annotated notes, keeps what was found in a file and scores it."""
    documents = extractor.documents(notes, site, adapter)
    path = write_documents(folder / f"predictions_{adapter}.jsonl", documents)
    scored = evaluate_extraction(documents, seed=seed)
    return EvaluationRecord(
        site=site,
        role=role,
        adapter=adapter,
        split="test",
        studies=len(documents),
        metrics=scored.estimates,
        skipped_metrics=scored.skipped,
        predictions=path.name,
    )


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Literal["participant", "unseen"],
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
) -> EvaluationRecord:
    """Tests a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
    """
    extractor = open_result(
        result,
        personalised=adapter,
        backbone=site.backbone.folder,
        precision=site.backbone.precision,
        device=device_of(site.device),
    )
    notes = [note for note in load_cohort(site).notes if note.split == split]
    if not notes:
        raise DataError(f"site '{site.name}': no note in the split '{split}'.")
    kind: AdapterKind = "generic" if adapter is None else "personalised"
    return score_notes(extractor, notes, site.name, role, kind, folder, seed)


def write_personalised(learner: ExtractionSite, folder: Path) -> None:
    """The shared A with the site's own B as a PEFT folder."""
    adapters = learner.model.adapters
    config = adapters.config_dict() | {"base_model_name_or_path": learner.model.backbone.name}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapters.exported(GENERIC), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
