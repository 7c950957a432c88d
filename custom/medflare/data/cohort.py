# SPDX-License-Identifier: Apache-2.0
"""Records that `load` reads from a site's files, with counts of everything that is not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from medflare.core.errors import ConfigError, DataError
from medflare.data.counts import AnnotationCounts, TextCounts, VisitCounts
from medflare.data.records import SPLITS, RecordLists, Skipped, Study
from medflare.data.settings.cohort import ScannerConfig


@dataclass(slots=True, kw_only=True)
class Cohort(RecordLists):
    """A site's usable records.

    Attributes:
        records: how many distinct records the sources had, usable or not.
        moved: patients whom a source put in two splits and who are now in one.
        allowed: how many records may be unusable before the site stops.
        identifiers: kind -> how many were replaced by surrogates (`deidentify: replace`).
        scanners: number of the source, "" for the only one -> the scanner applied to its images.
    """

    name: str
    records: int = 0
    moved: int = 0
    allowed: float = 0.0
    identifiers: Counter[str] = field(default_factory=Counter)
    scanners: dict[str, ScannerConfig | None] = field(default_factory=dict)
    annotation: AnnotationCounts = field(default_factory=AnnotationCounts)
    visits: VisitCounts = field(default_factory=VisitCounts)
    texts: TextCounts = field(default_factory=TextCounts)

    def split(self, name: str) -> list[Study]:
        """Return the studies of one split.

        Raises:
            ValueError: lists the splits.
        """
        if name not in SPLITS:
            raise ValueError(f"there is no split '{name}'; choose one of: {', '.join(SPLITS)}.")
        return [study for study in self.studies if study.split == name]


KINDS = {
    "studies": "images with reports",
    "notes": "annotated notes",
    "questions": "questions with options",
    "summaries": "findings with impressions",
}
"""List of records -> what a job that reads it needs."""


def check_kind(cohort: Cohort, reads: str) -> None:
    """Refuse a cohort that holds records of other kinds alone.

    Args:
        reads: a key of KINDS.

    Raises:
        ConfigError: names no record and no path, so that whoever chose the job may read it.
    """
    if getattr(cohort, reads):
        return
    present = " and ".join(words for name, words in KINDS.items() if getattr(cohort, name))
    raise ConfigError(
        f"site '{cohort.name}': this job reads {KINDS[reads]}, and the site's cohort holds {present}. Take a "
        "job that reads those (`medflare methods` lists what each reads), or another cohort."
    )


def check_skipped(cohort: Cohort, where: str) -> None:
    """Refuse a cohort of which more distinct records are unusable than `max_skipped` allows.

    Args:
        where: the folder or folders of the cohort, for the message.

    Raises:
        DataError: counts the reasons and quotes the first three records.
    """
    unusable = len({item.record for item in cohort.skipped})
    if unusable <= cohort.allowed + 1e-9:
        return
    first = "; ".join(
        item.detail if item.detail.startswith(item.record) else f"{item.record}: {item.detail}"
        for item in cohort.skipped[:3]
    )
    share = cohort.allowed / max(cohort.records, 1)
    raise DataError(
        f"{where}: {unusable} of {cohort.records} records cannot be used, allowed are {share:.1%}"
        f"{counted_reasons(cohort.skipped)}. The first: {first.rstrip('.')}. "
        "Mend the files, or raise 'max_skipped' in site.yaml if these records may be left out."
    )


def counted_reasons(skipped: Sequence[Skipped]) -> str:
    """Return " (reason count, ...)", most frequent first, or "" where nothing was skipped."""
    reasons = Counter(item.reason for item in skipped)
    listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return f" ({listed})" if listed else ""
