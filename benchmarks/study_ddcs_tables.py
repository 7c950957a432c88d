# SPDX-License-Identifier: Apache-2.0
"""The tables of study_ddcs.py, from its rounds.json alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from medflare.selection.clock import seconds_to_target
from study_units import DONE, unit_folder

TARGETS = (0.4, 0.5)
HEADS = (
    "rounds",
    "minutes a round",
    "hospitals a round",
    "longest wait",
    "Σ d²/q",
    *(f"minutes to {target:.0%}" for target in TARGETS),
    "accuracy at the end",
)
Runs = dict[tuple[str, str, str], list[dict[str, Any]]]
"""(partition, method, seed) -> rounds."""


def tables(
    out: Path,
    titles: Mapping[str, str],
    beside: Mapping[str, str],
    partitions: Sequence[str],
    seeds: Sequence[str],
    budget: float,
) -> str:
    """Markdown: one table a partition, and each method against its reference, seed by seed.

    beside: method -> the method it is compared with. budget: simulated seconds that every run had.
    """
    runs = read(out, titles, partitions, seeds)
    parts = []
    for partition in partitions:
        rows = [row(titles[name], _of(runs, partition, name), budget) for name in titles]
        there = [line for line in rows if line]
        if there:
            head = f"| choice | {' | '.join(HEADS)} |\n|---|{'---:|' * len(HEADS)}"
            parts.append("\n".join([f"**{partition}**\n", head, *there]))
    for reference in dict.fromkeys(beside.values()):
        names = [name for name in titles if beside[name] == reference and name != reference]
        parts.append("\n".join(against(runs, titles, reference, names, budget)))
    return "\n\n".join(parts) + "\n"


def read(out: Path, titles: Mapping[str, str], partitions: Sequence[str], seeds: Sequence[str]) -> Runs:
    """The rounds of every unit that is done."""
    found: Runs = {}
    for partition in partitions:
        for name in titles:
            for seed in seeds:
                folder = unit_folder(out, f"{partition}-{name}", seed)
                if (folder / DONE).is_file():
                    found[partition, name, seed] = json.loads((folder / "rounds.json").read_text())
    return found


def _of(runs: Runs, partition: str, name: str) -> list[list[dict[str, Any]]]:
    return [rounds for (p, n, _), rounds in runs.items() if (p, n) == (partition, name)]


def row(title: str, runs: Sequence[Sequence[Mapping[str, Any]]], budget: float) -> str:
    """Means over seeds with 95 % t-intervals; "" where there is no run."""
    if not runs:
        return ""
    facts = [facts_of(rounds) for rounds in runs]
    cells = [with_interval([fact[head] for fact in facts]) for head in HEADS[:5]]
    for target in TARGETS:
        reached = [to_target(rounds, target) for rounds in runs]
        cells.append(minutes([seconds for seconds in reached if seconds is not None], len(runs)))
    ends = [accuracy_at_end(rounds) for rounds in runs]
    cells.append(with_interval([100 * value for value in ends]))
    return f"| {title} ({len(runs)}) | {' | '.join(cells)} |"


def facts_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of one run: how many rounds, how long, how many different hospitals, how long one waited."""
    ages = [max(entry["rule"].get("ages", {"": 0}).values(), default=0) for entry in rounds]
    variance = [entry["rule"]["solution"]["variance"] for entry in rounds if "solution" in entry["rule"]]
    return {
        "rounds": len(rounds),
        "minutes a round": rounds[-1]["ended"] / len(rounds) / 60,
        "hospitals a round": float(np.mean([len(entry["trained"]) for entry in rounds])),
        "longest wait": max(ages),
        "Σ d²/q": float(np.mean(variance)) if variance else math.nan,
    }


def curve(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(simulated seconds, accuracy) wherever it was measured."""
    return [(e["ended"], e["metrics"]["accuracy"]) for e in rounds if "accuracy" in e["metrics"]]


def to_target(rounds: Sequence[Mapping[str, Any]], target: float) -> float | None:
    return seconds_to_target(curve(rounds), target)


def accuracy_at_end(rounds: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the last three measurements: one alone is of few questions."""
    return float(np.mean([value for _, value in curve(rounds)[-3:]]))


def minutes(seconds: Sequence[float], runs: int) -> str:
    """Mean over the runs that reached a target, and how many did not."""
    never = f" ({runs - len(seconds)} never)" if len(seconds) < runs else ""
    return (with_interval([value / 60 for value in seconds]) if seconds else "") + never


def with_interval(values: Sequence[float]) -> str:
    """Mean and half a 95 % t-interval over seeds; nothing where a value is missing."""
    kept = np.array([value for value in values if not math.isnan(value)])
    if not len(kept):
        return ""
    half = half_interval(kept)
    return f"{kept.mean():.1f}" + ("" if half is None else f" ± {half:.1f}")


def half_interval(values: np.ndarray) -> float | None:
    """Half a 95 % t-interval of the mean; None of a single value."""
    if len(values) < 2:
        return None
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def against(
    runs: Runs, titles: Mapping[str, str], reference: str, names: Sequence[str], budget: float
) -> list[str]:
    """Each of `names` against the reference on the same partition and seed.

    Ratio of seconds to the last target, where a run that never reached it counts with its budget, and
    difference of accuracy.
    """
    lines = [
        f"**Against “{titles[reference]}”, over all partitions and seeds**\n",
        f"| choice | pairs | seconds to {TARGETS[-1]:.0%}, ratio | p | accuracy, points | p |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        pairs = [
            (rounds, runs[partition, reference, seed])
            for (partition, own, seed), rounds in runs.items()
            if own == name and (partition, reference, seed) in runs
        ]
        if len(pairs) < 2:
            continue
        ratios = np.array(
            [math.log(_reached(mine, budget) / _reached(theirs, budget)) for mine, theirs in pairs]
        )
        points = np.array([100 * (accuracy_at_end(mine) - accuracy_at_end(theirs)) for mine, theirs in pairs])
        lines.append(
            f"| {titles[name]} | {len(pairs)} | {_ratio(ratios)} | {_p(ratios)} | {_points(points)} | "
            f"{_p(points)} |"
        )
    return lines


def _reached(rounds: Sequence[Mapping[str, Any]], budget: float) -> float:
    found = to_target(rounds, TARGETS[-1])
    return budget if found is None else found


def _ratio(logs: np.ndarray) -> str:
    half = half_interval(logs) or 0.0
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _points(values: np.ndarray) -> str:
    half = half_interval(values) or 0.0
    return f"{values.mean():+.1f} [{values.mean() - half:+.1f}, {values.mean() + half:+.1f}]"


def _p(values: np.ndarray) -> str:
    """Two-sided, by the exact signs of all pairs (a permutation of who is who)."""
    observed = abs(values.sum())
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(values))).reshape(len(values), -1)
    share = float((np.abs(values @ signs) >= observed - 1e-12).mean())
    return f"{share:.3f}"
