# SPDX-License-Identifier: Apache-2.0
"""The tables of study_fedtar.py, from its predictions and its rounds.json alone.

A score is that of each visit of a site, averaged over visits, then over sites without weights; intervals
and tests draw patients with all their visits, and seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from medflare.evaluation.predictions import Prediction
from medflare.evaluation.seed_tests import SeedDifference, difference_between_seeds, significant
from medflare.evaluation.statistics import (
    Statistic,
    difference_over_seeds,
    over_seeds,
)
from medflare.evaluation.visit_metrics import (
    averaged,
    change_statistics,
    follow_ups,
    groups_of,
    in_visit_order,
    mean_over_visits,
)
from medflare.reporting.metric_names import display_name
from medflare.tasks.prediction_files import read_predictions
from study_units import DONE, unit_folder

FILE = "predictions_generic.jsonl"

REPORTS = ("bleu_1", "bleu_4", "rouge_l", "cider", "label_f1", "label_micro_f1", "label_macro_f1")
CHANGES = ("change_f1", "change_moved_f1", "change_opposite")
COLUMNS = (*REPORTS, *CHANGES)
TESTED = ("bleu_4", "rouge_l", "cider", "label_f1", "change_f1")
REFERENCE = "fedtar"
REPLICATES = 5000
Rows = Callable[[list[Prediction]], list[Prediction]]


@dataclass(frozen=True)
class Unit:
    """The scores of one training over all sites, and whose rows they are."""

    scores: dict[str, Statistic]
    groups: dict[str, list[str]]


def read_unit(folder: Path, sites: Sequence[str]) -> Unit:
    """A site without later visits has no say in the scores of changes."""
    items = [read_predictions(folder / site / FILE) for site in sites]
    each = [mean_over_visits(own, REPORTS) for own in items]
    told = [change_statistics(own) for own in items]
    scores = {name: averaged([found[name] for found in each]) for name in REPORTS}
    scores |= {name: averaged([found[name] for found in told if found]) for name in CHANGES}
    rows = _groups(items, in_visit_order)
    later = _groups(items, follow_ups)
    return Unit(scores, {name: later if name in CHANGES else rows for name in COLUMNS})


def _groups(
    items: Sequence[list[Prediction]], rows: Callable[[list[Prediction]], list[Prediction]]
) -> list[str]:
    return [name for own in items for name in groups_of(rows(own))]


def tables(out: Path, titles: Mapping[str, str], sites: Sequence[str], seeds: Sequence[str]) -> str:
    """Markdown: scores, tests, α, processor time, and what is missing."""
    done = {n: [s for s in seeds if (unit_folder(out, n, s) / DONE).is_file()] for n in titles}
    there = {n: own for n, own in done.items() if own}
    units = {n: {s: read_unit(unit_folder(out, n, s), sites) for s in own} for n, own in there.items()}
    parts = ["\n".join(score_rows(units, titles))]
    for reference in (REFERENCE, "fedtar_beta"):
        if reference in units:
            parts += [
                f"**{titles[reference]} minus the others**",
                "\n".join(test_rows(units, titles, reference)),
            ]
    parts += ["\n".join(visit_rows(out, there, titles, sites)), "\n".join(alpha_lines(out, there, titles))]
    missing = [f"{titles[n]} seed {s}" for n in titles for s in seeds if s not in done[n]]
    parts.append(f"Not run: {'; '.join(missing) or 'nothing'}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def score_rows(units: Mapping[str, Mapping[str, Unit]], titles: Mapping[str, str]) -> Iterator[str]:
    """A line for each method: values with intervals over patients and seeds."""
    yield "| method | seeds | " + " | ".join(display_name(name) for name in COLUMNS) + " |"
    yield "|---|---:|" + "---:|" * len(COLUMNS)
    for name, runs in units.items():
        cells = []
        for metric in COLUMNS:
            own = list(runs.values())
            found = over_seeds([unit.scores[metric] for unit in own], groups=own[0].groups[metric])
            low, high = found.interval or (math.nan, math.nan)
            cells.append(f"{100 * found.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
        yield f"| {titles[name]} | {len(runs)} | " + " | ".join(cells) + " |"


def test_rows(
    units: Mapping[str, Mapping[str, Unit]], titles: Mapping[str, str], reference: str
) -> Iterator[str]:
    """The reference minus each other on the seeds that both have: difference, t interval, win-rate (ST-2).

    A star stands where a t test over five seeds or more, corrected for all comparisons here, gives p < 0.05.
    """
    gaps, wins, seeds_of = dict[tuple[str, str], SeedDifference](), dict[tuple[str, str], float](), {}
    for name, runs in units.items():
        seeds = [seed for seed in units[reference] if seed in runs]
        if name == reference or not seeds:
            continue
        seeds_of[name] = len(seeds)
        for metric in TESTED:
            ours, theirs = ([system[s].scores[metric] for s in seeds] for system in (units[reference], runs))
            values = [item.value for item in ours], [item.value for item in theirs]
            gaps[name, metric] = difference_between_seeds(*values)
            options: dict[str, Any] = {"groups": runs[seeds[0]].groups[metric], "replicates": REPLICATES}
            wins[name, metric] = difference_over_seeds(ours, theirs, **options).wins
    marked = significant(gaps)
    yield "| against | seeds | " + " | ".join(display_name(name) for name in TESTED) + " |"
    yield "|---|---:|" + "---:|" * len(TESTED)
    for name, count in seeds_of.items():
        cells = []
        for metric in TESTED:
            gap, star = gaps[name, metric], "*" if (name, metric) in marked else ""
            interval = (
                ""
                if gap.low is None or gap.high is None
                else f" [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
            )
            cells.append(f"{100 * gap.value:+.1f}{star}{interval} {100 * wins[name, metric]:.0f} %")
        yield f"| {titles[name]} | {count} | " + " | ".join(cells) + " |"


def visit_rows(
    out: Path, there: Mapping[str, Sequence[str]], titles: Mapping[str, str], sites: Sequence[str]
) -> Iterator[str]:
    """Validation loss per token of each visit after the last round, mean over seeds and sites."""
    said = {n: [last_validation(unit_folder(out, n, s)) for s in own] for n, own in there.items()}
    visits = max(len(own) for runs in said.values() for found in runs for own in found.values())
    yield "| validation loss per token | " + " | ".join(f"visit {t + 1}" for t in range(visits)) + " | mean |"
    yield "|---|" + "---:|" * (visits + 1)
    for name, runs in said.items():
        columns = [
            [found[site][t] for found in runs for site in sites if found[site][t] is not None]
            for t in range(visits)
        ]
        values = [mean(column) for column in columns]
        cells = " | ".join(f"{value:.3f}" for value in [*values, mean(values)])
        yield f"| {titles[name]} | {cells} |"


def last_validation(folder: Path) -> dict[str, list[Any]]:
    said = json.loads((folder / "rounds.json").read_text(encoding="utf-8"))
    found: dict[str, list[Any]] = [entry["val"] for entry in said if "val" in entry][-1]
    return found


def alpha_lines(out: Path, there: Mapping[str, Sequence[str]], titles: Mapping[str, str]) -> Iterator[str]:
    """α of the last round, its weights β, and what each visit's slope was, means over seeds."""
    for name, seeds in there.items():
        reports = [
            json.loads((unit_folder(out, name, seed) / "rounds.json").read_text())[-1]["rule"]
            for seed in seeds
        ]
        if any("alpha" not in report for report in reports):
            continue
        told = []
        for what in ("alpha", "beta", "slopes", "alpha_gradient"):
            if all(what in report for report in reports):
                means = [mean(values) for values in zip(*(report[what] for report in reports), strict=True)]
                told.append(f"{what} {', '.join(f'{value:.3g}' for value in means)}")
        yield f"{titles[name]}, last round: {'; '.join(told)}.\n"
