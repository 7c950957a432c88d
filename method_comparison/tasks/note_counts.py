# SPDX-License-Identifier: Apache-2.0
"""What every tested note adds to each score, without its text or name: small enough to keep with a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from medflare.core.errors import DataError
from medflare.evaluation.extraction_predictions import ScoredDocument
from medflare.evaluation.extraction_statistics import task_scores
from medflare.evaluation.label_metrics import Ratio, micro_statistic
from medflare.evaluation.statistics import Statistic
from method_comparison.comparison_table import Run

Counts = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt]


class MetricCounts(BaseModel):
    """One metric.

    Attributes:
        ratio: of the counts that is the metric; a rate of outputs is the precision of the faulty ones.
        patients: number of the patient of each note.
        counts: true positives, false positives and false negatives of each note.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    ratio: Literal["precision", "f1"]
    patients: list[NonNegativeInt]
    counts: list[Counts]

    @model_validator(mode="after")
    def _same_notes(self) -> MetricCounts:
        if len(self.patients) != len(self.counts):
            raise ValueError(f"{len(self.patients)} patients and counts of {len(self.counts)} notes")
        return self


FILE = TypeAdapter(dict[str, MetricCounts])
"""Metric -> its counts."""


def counts_file(folder: Path, place: str) -> Path:
    """Return where the counts of a place lie in a unit's folder."""
    return folder / f"{place}_counts.json"


def write_counts(path: Path, documents: Sequence[ScoredDocument], metrics: Sequence[str]) -> None:
    """Write the counts of the tested notes of one place."""
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(item.unit for item in documents))}
    found = {
        name: MetricCounts(
            ratio="f1" if name.endswith("_f1") else "precision",
            patients=[numbers[unit] for unit in part.units],
            counts=[(int(tp), int(fp), int(fn)) for tp, fp, fn in part.statistics[name].sums],
        )
        for part in task_scores(documents).values()
        for name in metrics
        if name in part.statistics
    }
    path.write_text(FILE.dump_json(found).decode() + "\n", encoding="utf-8")


def read_counts(path: Path) -> Run:
    """Return the scores by note.

    Raises:
        DataError: the file is damaged.
    """
    try:
        rows = FILE.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: is no file of counts by note: {where}: {first['msg']}. Remove its folder to train the "
            "unit again."
        ) from None
    scores = {name: _statistic(row.counts, row.ratio) for name, row in rows.items()}
    return Run(scores, {name: row.patients for name, row in rows.items()})


def _statistic(counts: Sequence[Counts], ratio: Ratio) -> Statistic:
    return micro_statistic(np.asarray(counts, dtype=np.float64)[:, None], ratio)
