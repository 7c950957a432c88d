# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate` on files of extraction predictions, or on a run whose files are here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.cli.output import print_json
from medflare.errors import ConfigError, DataError
from medflare.evaluation.extraction_metrics import (
    Scored,
    compare,
    evaluate_extraction,
    quick_extraction_metrics,
)
from medflare.evaluation.extraction_predictions import ScoredDocument, holds_extraction, read_documents
from medflare.evaluation.extraction_statistics import CLINICAL, OUTPUTS, TASKS
from medflare.evaluation.run_record import ComparisonRecord, read_record
from medflare.evaluation.tables import Row

COMPARED = (
    *("ner_strict_f1", "ner_lenient_f1", "ner_macro_strict_f1"),
    *("re_gold_strict_f1", "re_gold_lenient_f1", "re_e2e_strict_f1", "re_e2e_lenient_f1"),
)
POOLED = {"participant": "all that took part", "unseen": "all unseen", "": "all sites"}
WIDTH = 100  # where output is not a terminal


@dataclass(frozen=True, slots=True)
class Group:
    """One adapter's documents of one site, or of several together."""

    site: str
    role: str
    adapter: str
    documents: tuple[ScoredDocument, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A group with its scores."""

    group: Group
    scored: Scored

    @property
    def row(self) -> Row:
        """As tables take it."""
        group = self.group
        return Row(
            method=group.adapter,
            site=group.site,
            role=group.role,
            adapter=group.adapter,
            split="",
            studies=len(group.documents),
            metrics=self.scored.estimates,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain types; values are fractions of 1."""
        group = self.group
        return {
            "site": group.site,
            "role": group.role or None,
            "adapter": group.adapter,
            "notes": len(group.documents),
            "metrics": {name: item.model_dump() for name, item in self.scored.estimates.items()},
            "counts": {name: item._asdict() for name, item in self.scored.counts.items()},
            "skipped": self.scored.skipped,
        }


def score_files(
    places: Sequence[Path], against: Sequence[Path], *, split: str, by_type: bool, as_json: bool
) -> None:
    """Scores what `places` hold, compares with `against`, prints tables or JSON.

    Args:
        places: predictions files (.jsonl), or runs, which also say which sites took part.
    """
    results = [Result(group, evaluate_extraction(group.documents)) for group in _groups(places, split)]
    others = _groups(against, split) if against else []
    comparisons = [item for result in results for item in _comparisons(result.group, others)]
    if against and not comparisons:
        ours, theirs = ({group.site for group in side} for side in ([r.group for r in results], others))
        raise DataError(
            f"--against: no site is in both. Scored: {', '.join(sorted(ours))}; "
            f"there: {', '.join(sorted(theirs))}."
        )
    if as_json:
        print_json(
            {
                "systems": [result.as_json() for result in results],
                "comparisons": [item.model_dump() for item in comparisons],
            }
        )
        return
    _print(results, comparisons, ", ".join(path.name for path in against), by_type)


def _groups(places: Sequence[Path], split: str) -> list[Group]:
    """Every site and adapter, then the sites of a role together; those that took part come first."""
    documents: list[ScoredDocument] = []
    took_part: set[str] | None = None
    for place in places:
        found, sites = _documents_at(place, split)
        documents += found
        took_part = took_part if sites is None else (took_part or set()) | sites
    groups = []
    for adapter in sorted({item.adapter for item in documents}):
        own = [item for item in documents if item.adapter == adapter]
        for site in sorted({item.site for item in own}):
            role = "" if took_part is None else "participant" if site in took_part else "unseen"
            groups.append(Group(site, role, adapter, tuple(item for item in own if item.site == site)))
    together = sorted(groups, key=lambda group: (group.role, group.site)) + _pooled(groups)
    return sorted(together, key=lambda group: group.role)


def _pooled(groups: Sequence[Group]) -> list[Group]:
    found = []
    for role, adapter in sorted({(group.role, group.adapter) for group in groups}):
        parts = [group for group in groups if (group.role, group.adapter) == (role, adapter)]
        if len(parts) > 1:
            every = tuple(item for part in parts for item in part.documents)
            found.append(Group(POOLED[role], role, adapter, every))
    return found


def _documents_at(place: Path, split: str) -> tuple[list[ScoredDocument], set[str] | None]:
    """The documents, and the sites that took part where `place` is a run."""
    if place.suffix == ".jsonl":
        return _read(place), None
    from medflare.federation.after_run import locate

    record_path = locate(place)
    record = read_record(record_path)
    files = [
        record_path.parent / item.predictions
        for item in record.evaluations
        if item.predictions and item.split == split
    ]
    here = [path for path in files if path.is_file()]
    if not here:
        raise DataError(
            f"{record_path}: none of its {len(files)} predictions files of the split '{split}' is here; they "
            "stay at the sites. Name the files themselves, or test the adapter with --site-file."
        )
    return [item for path in here for item in _read(path)], set(record.sites)


def _read(path: Path) -> list[ScoredDocument]:
    if not holds_extraction(path):
        raise ConfigError(
            f"{path}: is not a file of extraction predictions. Reports are scored together with the studies: "
            "medflare evaluate <run> --site-file site.yaml"
        )
    return read_documents(path)


def _comparisons(ours: Group, others: Sequence[Group]) -> list[ComparisonRecord]:
    """With the same adapter's documents of the same sites, or with the only adapter that is there."""
    here = [group for group in others if group.site == ours.site]
    same = [group for group in here if group.adapter == ours.adapter] or here
    if len(same) != 1:
        return []
    theirs = same[0]
    asked = set(quick_extraction_metrics(ours.documents)) & set(quick_extraction_metrics(theirs.documents))
    found = {m: compare(ours.documents, theirs.documents, m) for m in COMPARED if m in asked}
    return [
        ComparisonRecord(
            metric=metric,
            site=ours.site,
            ours=ours.adapter,
            theirs=theirs.adapter,
            value=item.value,
            low=item.low,
            high=item.high,
            p=item.p,
        )
        for metric, item in found.items()
    ]


def _print(
    results: Sequence[Result], comparisons: Sequence[ComparisonRecord], other: str, by_type: bool
) -> None:
    from rich.console import Console

    from medflare.evaluation.extraction_tables import comparison_table, overview, type_table

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for result in results if by_type else ():
        title = f"{result.group.site}, {result.group.adapter}"
        for task in TASKS:
            if task not in result.scored.skipped:
                console.print(type_table(result.scored, task, title, CLINICAL.counted(task)), "")
    console.print(overview([result.row for result in results]), "")
    for why in _absences(results):
        console.print(why, style="dim")
    if comparisons:
        console.print(comparison_table(comparisons, other))


def _absences(results: Iterable[Result]) -> list[str]:
    """Why a whole task has no score, each reason once."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        for task in (*TASKS, OUTPUTS):
            if task in result.scored.skipped:
                reasons.setdefault(result.scored.skipped[task], []).append(result.group.site)
    return [f"{', '.join(dict.fromkeys(sites))}: {why}" for why, sites in reasons.items()]
