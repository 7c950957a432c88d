# SPDX-License-Identifier: Apache-2.0
"""A table of values that a unit has one of each: mean over seeds, t interval, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from medflare.evaluation.seed_tests import SeedDifference, difference_between_seeds
from method_comparison.markdown_table import Column, markdown_table

if TYPE_CHECKING:
    from method_comparison.runner import Comparison


Values = Mapping[str, float]


def values_table(
    comparison: Comparison, results: Mapping[str, Sequence[Values]], columns: Mapping[str, Column]
) -> str:
    """Return Markdown: a row for each method whose seeds are complete.

    Args:
        results: method -> its values by metric, one for each seed in the comparison's order.
        columns: metric -> its column; one that nothing has is left out.
    """
    columns = {
        name: column
        for name, column in columns.items()
        if any(name in run for runs in results.values() for run in runs)
    }
    cells = {
        (method, name): shown([run[name] for run in runs], column)
        for method, runs in results.items()
        for name, column in columns.items()
        if all(name in run for run in runs)
    }
    titles = {method: comparison.configuration.methods[method].title for method in results}
    against = {method: comparison.against(method) for method in results}
    return markdown_table(titles, columns, cells, differences(results, columns, against), against)


def shown(values: Sequence[float], column: Column) -> str:
    """Return the mean with its t interval over seeds, where they differ."""
    text = column.show(float(np.mean(values)))
    interval = t_interval(values)
    return text if interval is None or np.ptp(values) == 0 else f"{text} {column.interval(*interval)}"


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval of a mean over seeds; None of a single one."""
    if len(values) < 2:
        return None
    half = stats.t.ppf(0.975, len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values) - half), float(np.mean(values) + half)


def differences(
    results: Mapping[str, Sequence[Values]], columns: Mapping[str, Column], against: Mapping[str, str]
) -> dict[tuple[str, str], SeedDifference]:
    """(method, metric) -> its value minus that of the method it is compared with, seed by seed."""
    gaps = {}
    for method, runs in results.items():
        other = against[method]
        if other == method or other not in results:
            continue
        for name, column in columns.items():
            ours = [run[name] for run in runs if name in run]
            theirs = [run[name] for run in results[other] if name in run]
            if column.tested and len(ours) == len(theirs) == len(runs):
                gaps[method, name] = difference_between_seeds(ours, theirs)
    return gaps
