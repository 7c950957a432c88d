# SPDX-License-Identifier: Apache-2.0
"""Statistics by study that several tasks' tables share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.statistics import Statistic
from method_comparison.comparison_table import Run


def scored_reports(studies: list[Prediction], columns: Sequence[str]) -> Run:
    """Return the columns' statistics of reports, and the patient of each."""
    found = prediction_statistics(studies)
    return Run({name: found[name] for name in columns if name in found}, patients(studies))


def patients(studies: Sequence[Prediction]) -> list[tuple[str, str]]:
    """Return the patient of each study, all of whose studies are drawn together."""
    return [(item.site, item.patient_id or f"study {item.study_id}") for item in studies]


def averaged(models: list[dict[str, Statistic]]) -> dict[str, Statistic]:
    """Return the mean over several models of each metric on the same studies, still one row a study."""
    return {name: _mean([model[name] for model in models]) for name in models[0]} if models else {}


def _mean(items: list[Statistic]) -> Statistic:
    edges = np.cumsum([item.sums.shape[1] for item in items])[:-1]

    def value(sums: np.ndarray) -> np.ndarray:
        columns = np.split(sums, edges, axis=-1)
        return np.mean([item.score(part) for item, part in zip(items, columns, strict=True)], axis=0)

    return Statistic(np.concatenate([item.sums for item in items], axis=1), value)
