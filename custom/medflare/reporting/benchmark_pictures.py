# SPDX-License-Identifier: Apache-2.0
"""Pictures of how a benchmark's clients differ: label shares, lengths of reports, shared words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS

QUANTILES = ("5", "25", "50", "75", "95")


def write_pictures(clients: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write three PNG files and return them.

    Args:
        clients: the block `clients` of benchmark.json.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(clients)
    written = []

    def save(figure: Figure, name: str) -> None:
        FigureCanvasAgg(figure)
        path = folder / name
        figure.savefig(path, dpi=110, metadata={"Software": None})
        written.append(path)

    labels = Figure(figsize=(8, 0.35 * len(names) + 3), layout="constrained")
    axes = labels.add_subplot()
    shares = [[clients[name]["labels"][condition] for condition in CONDITIONS] for name in names]
    image = axes.imshow(shares, aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(range(len(CONDITIONS)), CONDITIONS, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    labels.colorbar(image, label="share of studies with the condition")
    save(labels, "label_shares.png")

    lengths = Figure(figsize=(8, 3.5), layout="constrained")
    axes = lengths.add_subplot()
    for place, name in enumerate(names):
        low, first, middle, third, high = (clients[name]["words"][q] for q in QUANTILES)
        axes.plot([place, place], [low, high], color="0.6")
        axes.plot([place, place], [first, third], color="C0", linewidth=7, solid_capstyle="butt")
        axes.plot(place, middle, "w_", markersize=8)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylabel("words of the findings")
    save(lengths, "report_lengths.png")

    words = Figure(figsize=(8, 3.5), layout="constrained")
    axes = words.add_subplot()
    axes.bar(range(len(names)), [clients[name]["overlap"] for name in names], color="C0")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylabel("words that another client uses too")
    axes.set_ylim(0, 1)
    save(words, "vocabulary_overlap.png")
    return written
