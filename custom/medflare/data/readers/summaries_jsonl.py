# SPDX-License-Identifier: Apache-2.0
"""Texts with their summaries, one a row of JSON lines or CSV: findings and impression, or source and target.

Columns: source (else findings), target (else impression); optional id (else uid), patient_id, split, and
group (else device_family). Rows with more de-identification marks (XXXX, ___) than `most_masks` are left out.
"""

from __future__ import annotations

from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import ColumnMap
from medflare.data.readers.text_rows import TextRow, text_rows
from medflare.data.records import Summary
from medflare.data.settings.cohort import CohortConfig
from medflare.data.text import count_masks

FIELDS: ColumnMap = {
    "id": ["id", "summary_id", "uid"],
    "source": ["source", "findings"],
    "target": ["target", "impression"],
    "patient_id": "patient_id",
    "split": "split",
    "group": ["group", "device_family"],
}
REQUIRED = ("source", "target")


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or the tables of `config.root`."""
    source = SourceRecords()
    for row in text_rows(config, FIELDS, REQUIRED, source):
        with source.skipping(row.record):
            summary = _summary(row)
            if config.most_masks is not None and masks(summary) > config.most_masks:
                source.too_masked += 1
            else:
                source.summaries.append(summary)
    return source


def masks(summary: Summary) -> int:
    """Return the number of de-identification marks in source and target together."""
    return count_masks(summary.source) + count_masks(summary.target)


def _summary(row: TextRow) -> Summary:
    return Summary(
        summary_id=row.record,
        source=row.words("source"),
        target=row.words("target"),
        patient_id=row.text("patient_id") or row.record,
        split=row.split,
        group=row.text("group"),
    )
