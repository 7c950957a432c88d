# SPDX-License-Identifier: Apache-2.0
"""Uncertainty of scores: bootstrap intervals, paired comparisons and combination over seeds.

Every metric here is a function of sums over studies: corpus BLEU of n-gram counts, F1 of true and false
positives, ROUGE-L of a total and a count. A bootstrap replicate is then one row of integer weights times
the table of per-study sums, so a thousand replicates are one matrix product, and corpus metrics are
recomputed as corpus metrics, never averaged over sentences.

Sources: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapters 13 (percentile interval), 14
(BCa interval) and 15 (permutation test); Koehn, EMNLP 2004 (bootstrap of corpus BLEU); Holm, Scandinavian
Journal of Statistics 6, 1979.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from medflare.core.run_record import Estimate

Array = NDArray[np.float64]
Groups = Sequence[Hashable] | None
Key = TypeVar("Key", bound=Hashable)
LEVEL = 0.95
SMALL = 50
"""Units up to which intervals are BCa."""
CHUNK = 4_000_000  # weights in memory at once: 32 MB


@dataclass(frozen=True, slots=True)
class Statistic:
    """A metric before it is summed.

    Attributes:
        sums: (studies, k) what each study adds.
        score: maps summed rows (..., k) to values (...).
    """

    sums: Array
    score: Callable[[Array], Array]

    @property
    def value(self) -> float:
        """The metric over all studies, each counted once."""
        return float(self.score(self.sums.sum(axis=0)))

    def __len__(self) -> int:
        return len(self.sums)


class Evaluation(NamedTuple):
    """The scores of one system on one site's records.

    Attributes:
        estimates: metric -> its value with an interval.
        skipped: metric -> why it has no estimate.
        statistics: what every record adds to each metric.
    """

    estimates: dict[str, Estimate]
    skipped: dict[str, str]
    statistics: dict[str, Statistic]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two systems' scores on the same studies.

    Attributes:
        low, high: ends of the 95 % interval; None for one study, or those of one patient.
        p: two-sided.
    """

    value: float
    low: float | None
    high: float | None
    p: float


def mean_statistic(values: Sequence[float] | Array) -> Statistic:
    """Return the plain mean of one value per study."""
    column = np.asarray(values, dtype=np.float64)
    return Statistic(np.stack([column, np.ones_like(column)], axis=1), ratio_of_sums)


def restricted(statistic: Statistic, wanted: Sequence[bool]) -> Statistic:
    """Return the metric over some of the studies; the others add nothing, so that resamples stay the same.

    Args:
        statistic: over all studies.
        wanted: one truth value per study.
    """
    return Statistic(statistic.sums * np.asarray(wanted, dtype=np.float64)[:, None], statistic.score)


def ratio_of_sums(sums: Array) -> Array:
    """Return the first column of summed rows (..., 2) over the second one; over 1 where that is 0."""
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def divide_or_zero(top: Array, bottom: Array) -> Array:
    """Return the elementwise quotient, 0 where `bottom` is not positive."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def pooled(parts: Sequence[Statistic]) -> Statistic:
    """Return one statistic over the studies of several sites; all parts must be the same metric."""
    return Statistic(np.concatenate([part.sums for part in parts]), parts[0].score)


def _by_group(sums: Array, groups: Groups) -> Array:
    """Return rows added up within a group (a patient), so that all of it is drawn together: (groups, k)."""
    if groups is None:
        return sums
    if len(groups) != len(sums):
        raise ValueError(f"{len(groups)} group names for {len(sums)} studies; one for each is needed.")
    place = {name: index for index, name in enumerate(dict.fromkeys(groups))}
    added = np.zeros((len(place), sums.shape[1]))
    np.add.at(added, [place[name] for name in groups], sums)
    return added


def _replicates(scores: Sequence[Statistic], groups: Groups, count: int, seed: int) -> list[Array]:
    """Return each statistic's values in `count` resamples, (count,); all see the same resamples."""
    if not len(scores[0]):
        raise ValueError("There are no studies to resample.")
    if any(len(item) != len(scores[0]) for item in scores):
        raise ValueError(f"Statistics cover {[len(s) for s in scores]} studies; they must be the same ones.")
    tables = [_by_group(item.sums, groups) for item in scores]
    units, rng = len(tables[0]), np.random.default_rng(seed)
    joined = np.concatenate(tables, axis=1)
    edges = np.cumsum([table.shape[1] for table in tables])[:-1]
    drawn: list[Array] = []
    step = max(1, CHUNK // units)
    for start in range(0, count, step):
        rows = min(step, count - start)
        picks = rng.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
        weights = np.bincount(picks.ravel(), minlength=rows * units).reshape(rows, units)
        drawn.append(weights.astype(np.float64) @ joined)
    parts = np.split(np.concatenate(drawn), edges, axis=1)
    return [item.score(part) for item, part in zip(scores, parts, strict=True)]


def _interval(values: Array, units: int) -> tuple[float, float] | tuple[None, None]:
    """Return the percentile interval of resamples of so many units; none of a single one."""
    if units < 2:
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def bootstrap(
    statistics: Mapping[str, Statistic], *, groups: Groups = None, replicates: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return every metric with its 95 % bootstrap interval over studies, or over `groups` (patients).

    The interval is BCa (bias-corrected and accelerated) for up to `SMALL` units, where the percentile
    interval is too short (ST-1), and the percentile interval above, where both agree. One unit has none: it
    says nothing of how units differ.

    Args:
        statistics: metric -> what every study adds to it, over the same studies.
        groups: one name per study; studies of one name are drawn together.
        replicates: number of resamples.
        seed: of the resamples.

    Raises:
        ValueError: there are no studies, or statistics or groups cover different ones.
    """
    if not statistics:
        return {}
    drawn = _replicates(list(statistics.values()), groups, replicates, seed)
    result = {}
    for (name, item), values in zip(statistics.items(), drawn, strict=True):
        table = _by_group(item.sums, groups)
        corrected = _bca(table, item.score, replicates, seed) if 1 < len(table) <= SMALL else None
        low, high = corrected or _interval(values, len(table))
        result[name] = Estimate(value=item.value, low=low, high=high)
    return result


def _bca(
    table: Array, score: Callable[[Array], Array], replicates: int, seed: int
) -> tuple[float, float] | None:
    """Return the BCa interval over the rows of a table; None where all resamples have one value."""
    from scipy import stats  # late: every launcher imports this module

    def value(picks: NDArray[np.int64], axis: int = -1) -> Array:
        return score(table[picks].sum(axis=axis - 1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # told by the interval, which is nan
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.bootstrap(
            (np.arange(len(table)),),
            value,
            n_resamples=replicates,
            vectorized=True,
            axis=-1,
            confidence_level=LEVEL,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = map(float, result.confidence_interval)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def paired_difference(
    ours: Statistic, theirs: Statistic, *, groups: Groups = None, replicates: int = 1000, seed: int = 0
) -> Difference:
    """Compare two systems: `ours` minus `theirs`, row i of both being the same study.

    The interval is of `replicates` resamples of the bootstrap; the p-value is of `permutation_test`, which
    two or three studies cannot make small: their resamples lie so near to each other that a bootstrap would
    call any difference certain.
    """
    first, second = _replicates([ours, theirs], groups, replicates, seed)
    units = len(_by_group(ours.sums, groups))
    low, high = _interval(first - second, units)
    p = permutation_test(ours, theirs, groups=groups, seed=seed)
    return Difference(ours.value - theirs.value, low, high, p)


def permutation_test(
    ours: Statistic, theirs: Statistic, *, groups: Groups = None, replicates: int = 10_000, seed: int = 0
) -> float:
    """Return the two-sided p-value of the null hypothesis that the two systems' outputs are exchangeable.

    In each replicate every study (or group) swaps its two outputs with probability one half. The observed
    outputs count as one more, so that p is never 0; there are enough replicates for p to be small after Holm.
    """
    first, second = _by_group(ours.sums, groups), _by_group(theirs.sums, groups)
    if first.shape != second.shape:
        raise ValueError(f"A paired test needs the same studies; found {len(ours)} and {len(theirs)}.")
    observed, rng, beyond = abs(ours.value - theirs.value), np.random.default_rng(seed), 0
    step = max(1, CHUNK // len(first))
    for start in range(0, replicates, step):
        size = (min(step, replicates - start), len(first))
        moved = rng.integers(2, size=size).astype(np.float64) @ (first - second)
        drawn = ours.score(first.sum(axis=0) - moved) - theirs.score(second.sum(axis=0) + moved)
        beyond += int((np.abs(drawn) >= observed - 1e-12).sum())
    return (1 + beyond) / (1 + replicates)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return p-values adjusted for their number: the chance of any false one among them is then at most p.

    The k-th smallest of m is multiplied by m - k + 1, and is never below the adjusted value before it.
    """
    adjusted, largest = {}, 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


def over_seeds(
    runs: Sequence[Statistic], *, groups: Groups = None, replicates: int = 1000, seed: int = 0
) -> Estimate:
    """Return the mean over training seeds; the interval resamples seeds, and within a draw its studies.

    All runs are scored on the same studies. With fewer than five seeds the spread between seeds is
    estimated from so few values that the interval is optimistic; report the number of seeds beside it.
    """
    # Studies are crossed with seeds, hence one resample of the studies serves all seeds of a replicate.
    values = np.stack(_replicates(runs, groups, replicates, seed))
    picks = np.random.default_rng([seed, 1]).integers(len(runs), size=values.shape)
    units = len(runs) * len(_by_group(runs[0].sums, groups))
    low, high = _interval(np.take_along_axis(values, picks, axis=0).mean(axis=0), units)
    return Estimate(value=float(np.mean([run.value for run in runs])), low=low, high=high)
