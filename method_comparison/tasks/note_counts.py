# SPDX-License-Identifier: Apache-2.0
"""Scores of tested notes: from predictions, or from counts by note without texts, small enough to be kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.evaluation.extraction_predictions import ScoredDocument
from medflare.evaluation.extraction_statistics import task_scores
from medflare.evaluation.label_metrics import Ratio, micro_statistic
from medflare.evaluation.statistics import Statistic
from medflare.tasks.prediction_files import read_documents
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


def counts_file(predictions: Path) -> Path:
    """Return where the counts of a predictions file lie."""
    return predictions.with_name(f"{predictions.stem}_counts.json")


def write_documents(predictions: Path, documents: Sequence[ScoredDocument], metrics: Sequence[str]) -> None:
    """Write the predictions of tested notes, and their counts beside them."""
    write_lines(predictions, documents)
    write_counts(counts_file(predictions), documents, metrics)


def was_tested(predictions: Path) -> bool:
    """Whether the predictions are there, or their counts alone."""
    return predictions.is_file() or counts_file(predictions).is_file()


def scores_by_note(predictions: Path, metrics: Sequence[str]) -> Run:
    """Return the scores of a predictions file: of its counts where they are kept, else of the file."""
    file = counts_file(predictions)
    if file.is_file():
        run = read_counts(file)
        return Run({name: one for name, one in run.scores.items() if name in metrics}, run.groups)
    found = {
        name: (part.statistics[name], part.units)
        for part in task_scores(read_documents(predictions)).values()
        for name in metrics
        if name in part.statistics
    }
    return Run({name: one for name, (one, _) in found.items()}, {name: of for name, (_, of) in found.items()})


def joined(runs: Sequence[Run]) -> Run:
    """Return the scores of the notes of several files together; no patient has notes in two of them."""
    names = dict.fromkeys(name for run in runs for name in run.scores)
    scores, groups = dict[str, Statistic](), dict[str, list[tuple[int, Hashable]]]()
    for name in names:
        having = [(number, run) for number, run in enumerate(runs) if name in run.scores]
        parts = [run.scores[name] for _, run in having]
        scores[name] = Statistic(np.concatenate([part.sums for part in parts]), parts[0].score)
        groups[name] = [(number, of) for number, run in having for of in run.groups_of(name)]
    return Run(scores, groups)


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
