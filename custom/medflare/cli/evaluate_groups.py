# SPDX-License-Identifier: Apache-2.0
"""Groups of extraction predictions scored together: one adapter at one site, or at all sites of a role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import read_record
from medflare.evaluation.extraction_predictions import ScoredDocument
from medflare.tasks.prediction_files import holds_extraction, read_documents

POOLED = {"participant": "all that took part", "unseen": "all unseen", "": "all sites"}


@dataclass(frozen=True, slots=True)
class PredictionGroup:
    """One adapter's documents of one site, or of several together."""

    site: str
    role: str
    adapter: str
    documents: tuple[ScoredDocument, ...]


def groups_at(places: Sequence[Path], split: str, sites: Sequence[str] | None) -> list[PredictionGroup]:
    """Return every site and adapter, then the sites of a role together; those that took part come first.

    Args:
        places: predictions files, or runs, whose records say which sites took part.
        split: of a run's evaluations.
        sites: which of the sites there; None for all.

    Raises:
        ConfigError: a site is not there, or a file holds no extraction predictions.
        DataError: a run's predictions files are not here.
    """
    documents: list[ScoredDocument] = []
    took_part: set[str] | None = None
    for place in places:
        at_place, members = _documents_at(place, split)
        documents += at_place
        took_part = took_part if members is None else (took_part or set()) | members
    present = {item.site for item in documents}
    if missing := sorted(set(sites or ()) - present):
        raise ConfigError(
            f"--sites {', '.join(missing)}: not there; there are: {', '.join(sorted(present))}."
        )
    documents = [item for item in documents if sites is None or item.site in sites]
    groups = []
    for adapter in sorted({item.adapter for item in documents}):
        same = [item for item in documents if item.adapter == adapter]
        for site in sorted({item.site for item in same}):
            role = "" if took_part is None else "participant" if site in took_part else "unseen"
            groups.append(
                PredictionGroup(site, role, adapter, tuple(item for item in same if item.site == site))
            )
    together = sorted(groups, key=lambda group: (group.role, group.site)) + _pooled(groups)
    return sorted(together, key=lambda group: group.role)


def _pooled(groups: Sequence[PredictionGroup]) -> list[PredictionGroup]:
    pooled = []
    for role, adapter in sorted({(group.role, group.adapter) for group in groups}):
        parts = [group for group in groups if (group.role, group.adapter) == (role, adapter)]
        if len(parts) > 1:
            every = tuple(item for part in parts for item in part.documents)
            pooled.append(PredictionGroup(POOLED[role], role, adapter, every))
    return pooled


def _documents_at(place: Path, split: str) -> tuple[list[ScoredDocument], set[str] | None]:
    """Return the documents, and the sites that took part where `place` is a run."""
    if place.suffix == ".jsonl":
        return _read(place), None
    from medflare.recipes.after_run import locate

    record_path = locate(place)
    record = read_record(record_path)
    files = [
        record_path.parent / item.predictions
        for item in record.evaluations
        if item.predictions and item.split == split
    ]
    existing = [path for path in files if path.is_file()]
    if not existing:
        raise DataError(
            f"{record_path}: none of its {len(files)} predictions files of the split '{split}' is here; they "
            "stay at the sites. Name the files themselves, or test the adapter with --site-file."
        )
    if away := [str(path) for path in files if path not in existing]:
        typer.secho(f"left out, not here: {', '.join(away)}", fg=typer.colors.YELLOW, err=True)
    return [item for path in existing for item in _read(path)], set(record.sites)


def _read(path: Path) -> list[ScoredDocument]:
    if not holds_extraction(path):
        raise ConfigError(
            f"{path}: is not a file of extraction predictions. Reports are scored together with the studies: "
            "medflare evaluate <run> --site-file site.yaml"
        )
    return read_documents(path)
