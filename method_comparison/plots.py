# SPDX-License-Identifier: Apache-2.0
"""Curves of a comparison as SVG: the mean over seeds of each complete method, and the range of the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from method_comparison.result import Result
from method_comparison.runner import Comparison

POINTS = 60


def write_plots(
    comparison: Comparison, results: Mapping[tuple[str, str, int], Result], folder: Path
) -> dict[str, list[Path]]:
    """Write one picture for each partition and name of `Measured.curves`; return them by partition."""
    written: dict[str, list[Path]] = {}
    for partition in comparison.partitions:
        own = {unit[1:]: result for unit, result in results.items() if unit[0] == partition}
        for name in dict.fromkeys(name for result in own.values() for name in result.curves):
            path = folder / f"{comparison.name}_{partition}_{name}.svg"
            curves = {unit: result.curves[name] for unit, result in own.items() if name in result.curves}
            _write(comparison, curves, name, path)
            written.setdefault(partition, []).append(path)
    return written


def _write(
    comparison: Comparison, curves: Mapping[tuple[str, int], list[tuple[float, float]]], name: str, path: Path
) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["svg.hashsalt"] = "none", "medflare"
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    for method in comparison.methods:
        runs = [np.array(curves[method, seed]) for seed in comparison.seeds if (method, seed) in curves]
        runs = [run for run in runs if len(run) > 1]
        if not runs:
            continue
        begin, end = max(run[0, 0] for run in runs), min(run[-1, 0] for run in runs)
        grid = np.linspace(begin, end, POINTS)
        values = np.stack([np.interp(grid, run[:, 0], run[:, 1]) for run in runs])
        (line,) = axis.plot(grid, values.mean(0), label=comparison.configuration.methods[method].title)
        axis.fill_between(grid, values.min(0), values.max(0), color=line.get_color(), alpha=0.12, linewidth=0)
    axis.set_xlabel(comparison.task.curve_axes.get(name, ""))
    axis.set_ylabel(name)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=7)
    _save(figure, path)
    plt.close(figure)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
