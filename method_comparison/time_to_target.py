# SPDX-License-Identifier: Apache-2.0
"""When runs reach a target, some of which never do in the time they have (DD-16).

A run that has not reached the target is censored where it ended, not counted with its last second: the
restricted mean is the area under the Kaplan-Meier curve up to the horizon that all runs had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from method_comparison.result import TimeToTarget

Curve = Sequence[tuple[float, float]]


def time_to_target(curve: Curve, target: float, horizon: float) -> TimeToTarget:
    """Return when a curve of (seconds, quality) first reaches `target`, or that it had not at `horizon`."""
    for seconds, quality in curve:
        if quality >= target and seconds <= horizon:
            return TimeToTarget(seconds=seconds, reached=True)
    return TimeToTarget(seconds=horizon, reached=False)


def restricted_mean(times: Sequence[TimeToTarget], horizon: float) -> float:
    """Return the mean seconds to the target within `horizon`: the area under the Kaplan-Meier curve.

    Where the last run was censored before the horizon, the curve stays at its last value.
    """
    curve = _survival(times)
    edges = np.concatenate([[0.0], curve.quantiles[curve.quantiles < horizon], [horizon]])
    return float((np.diff(edges) * curve.evaluate(edges[:-1])).sum())


def median(times: Sequence[TimeToTarget]) -> float | None:
    """Return when half of the runs had reached the target; None where fewer ever did."""
    curve = _survival(times)
    below = curve.quantiles[curve.probabilities <= 0.5]
    return float(below[0]) if len(below) else None


def _survival(times: Sequence[TimeToTarget]) -> Any:
    reached = [item.seconds for item in times if item.reached]
    open_ends = [item.seconds for item in times if not item.reached]
    return stats.ecdf(stats.CensoredData(uncensored=reached, right=open_ends)).sf
