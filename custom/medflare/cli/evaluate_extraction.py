# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate` on files of extraction predictions, or on a run whose files are here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.cli.evaluate_groups import PredictionGroup, groups_at
from medflare.cli.output import print_json
from medflare.core.errors import DataError
from medflare.core.run_record import ComparisonRecord
from medflare.evaluation.extraction_metrics import (
    ExtractionScores,
    compare,
    evaluate_extraction,
    quick_extraction_metrics,
)
from medflare.evaluation.extraction_statistics import CLINICAL, OUTPUTS, TASKS
from medflare.reporting.score_rows import ScoreRow

COMPARED = (
    *("ner_strict_f1", "ner_lenient_f1", "ner_macro_strict_f1"),
    *("re_gold_strict_f1", "re_gold_lenient_f1", "re_e2e_strict_f1", "re_e2e_lenient_f1"),
)
WIDTH = 100  # where output is not a terminal


@dataclass(frozen=True, slots=True)
class GroupScores:
    """A group with its scores."""

    group: PredictionGroup
    scored: ExtractionScores

    @property
    def row(self) -> ScoreRow:
        """The row of a table."""
        group = self.group
        return ScoreRow(
            task="extraction",
            method=group.adapter,
            site=group.site,
            role=group.role,
            adapter=group.adapter,
            split="",
            studies=len(group.documents),
            metrics=self.scored.estimates,
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain types; values are fractions of 1."""
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
    places: Sequence[Path],
    against: Sequence[Path],
    *,
    sites: Sequence[str] | None,
    split: str,
    by_type: bool,
    as_json: bool,
) -> None:
    """Score what `places` hold, compare with `against`, and print tables or JSON.

    Args:
        places: predictions files (.jsonl), or runs, which also say which sites took part.
        sites: which of the sites there; None for all.
    """
    groups = groups_at(places, split, sites)
    results = [GroupScores(group, evaluate_extraction(group.documents)) for group in groups]
    others = groups_at(against, split, sites) if against else []
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


def _comparisons(ours: PredictionGroup, others: Sequence[PredictionGroup]) -> list[ComparisonRecord]:
    """Compare with the same adapter's documents of the same site, or with the only adapter that is there."""
    at_same_site = [group for group in others if group.site == ours.site]
    same = [group for group in at_same_site if group.adapter == ours.adapter] or at_same_site
    if len(same) != 1:
        return []
    theirs = same[0]
    scored = set(quick_extraction_metrics(ours.documents)) & set(quick_extraction_metrics(theirs.documents))
    differences = {m: compare(ours.documents, theirs.documents, m) for m in COMPARED if m in scored}
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
        for metric, item in differences.items()
    ]


def _print(
    results: Sequence[GroupScores], comparisons: Sequence[ComparisonRecord], other: str, by_type: bool
) -> None:
    from rich.console import Console

    from medflare.reporting.extraction_tables import comparison_table, overview, type_table

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for result in results if by_type else ():
        title = f"{result.group.site}, {result.group.adapter}"
        for task in TASKS:
            if task not in result.scored.skipped:
                console.print(type_table(result.scored, task, title, CLINICAL.counted(task)), "")
    console.print(overview([result.row for result in results]), "")
    for why in _skipped_tasks(results):
        console.print(why, style="dim")
    if comparisons:
        console.print(comparison_table(comparisons, other))


def _skipped_tasks(results: Iterable[GroupScores]) -> list[str]:
    """Return why a task has no score at sites, each reason once."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        for task in (*TASKS, OUTPUTS):
            if task in result.scored.skipped:
                reasons.setdefault(result.scored.skipped[task], []).append(result.group.site)
    return [f"{', '.join(dict.fromkeys(sites))}: {why}" for why, sites in reasons.items()]
