# SPDX-License-Identifier: Apache-2.0
"""The pictures of study_fedtar.py: how the validation loss falls, and what α became."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from study_units import unit_folder

MARKED = ("fedtar", "fedtar_beta", "fedtar_no_temporal", "fedavg_pooled", "fedavg_in_turn")
"""Drawn in colour; the others are thin lines."""
LEARNT = ("fedtar", "fedtar_beta")


def plots(out: Path, there: Mapping[str, Sequence[str]], titles: Mapping[str, str], folder: Path) -> None:
    """`fedtar_convergence.svg` and `fedtar_alpha.svg` into `folder`.

    there: method -> the seeds that are done.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["svg.hashsalt"] = "none", "medflare"
    said = {name: [_read(out, name, seed) for seed in seeds] for name, seeds in there.items()}
    folder.mkdir(parents=True, exist_ok=True)
    curves = {n: [_losses(unit) for unit in runs] for n, runs in said.items()}
    begun = curves.pop("start", [])
    _convergence(
        {n: [begun[0] + own if begun else own for own in c] for n, c in curves.items()}, titles, folder
    )
    learnt = {name: [_alphas(unit) for unit in said[name]] for name in LEARNT if name in said}
    if learnt:
        _alpha(learnt, titles, folder)


def _read(out: Path, name: str, seed: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (unit_folder(out, name, seed) / "rounds.json").read_text(encoding="utf-8")
    )
    return found


def _losses(unit: Sequence[Mapping[str, Any]]) -> list[float]:
    """After each round, the mean over sites of the mean over visits, as far as they have any."""
    found = []
    for entry in unit:
        sites = [[x for x in visits if x is not None] for visits in entry.get("val", {}).values()]
        if any(sites):
            found.append(mean(mean(own) for own in sites if own))
    return found


def _alphas(unit: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """α_1..α_T of each round, as its first exchange has them."""
    return [entry["rule"]["alpha"] for entry in unit if entry["rule"]["visit"] == 1]


def _convergence(losses: Mapping[str, list[list[float]]], titles: Mapping[str, str], folder: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    for name, runs in losses.items():
        curve = [mean(values) for values in zip(*runs, strict=True)]
        style = {"linewidth": 1.8} if name in MARKED else {"linewidth": 0.7, "color": "#b0b0b0"}
        label = titles[name] if name in MARKED else None
        axis.plot(range(len(curve)), curve, label=label, marker=".", markersize=4, **style)
    axis.set_xlabel("round (T exchanges each)")
    axis.set_ylabel("validation loss per token")
    axis.legend(frameon=False, fontsize=8)
    _save(figure, folder / "fedtar_convergence.svg")


def _alpha(learnt: Mapping[str, list[list[list[float]]]], titles: Mapping[str, str], folder: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(learnt), figsize=(3.6 * len(learnt), 3.0), sharey=True, squeeze=False)
    for axis, (name, runs) in zip(axes[0], learnt.items(), strict=True):
        for visit in range(len(runs[0][0])):
            for place, unit in enumerate(runs):
                label = f"visit {visit + 1}" if place == 0 else None
                values = [alpha[visit] for alpha in unit]
                axis.plot(range(1, len(values) + 1), values, color=f"C{visit}", linewidth=1.2, label=label)
        axis.set_title(titles[name], fontsize=9)
        axis.set_xlabel("round")
    axes[0][0].set_ylabel("α")
    axes[0][-1].legend(frameon=False, fontsize=8)
    _save(figure, folder / "fedtar_alpha.svg")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
