# SPDX-License-Identifier: Apache-2.0
"""The tables of study_fedmrg.py, from its predictions files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.statistics import Statistic
from medflare.reporting.metric_names import display_name
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run, comparison_table

SITES, UNSEEN, OURS = ("site-1", "site-2", "site-3"), "hospital-4", "fedmrg"
COLUMNS = ("bleu_4", "rouge_l", "cider", "label_f1", "label_micro_f1")
HEADINGS = {name: display_name(name) for name in COLUMNS}
PLACES = {
    "participants": "own test studies of the three hospitals, pooled; personalised adapter if there is one",
    "participants, generic adapter": "the same studies with the shared adapter alone",
    "participants, personalised as trained": "the same studies, γ_mix = 0 instead of the paper's 0.5 (MRG-8)",
    "validation": "own validation studies, γ_mix = 0.5",
    "validation, as trained": "own validation studies, γ_mix = 0",
    "unseen hospital": "hospital-4, which took no part; shared adapter (mean over the three local models)",
}
FOLDERS = {
    "participants, personalised as trained": "@gamma-0",
    "validation": "@val",
    "validation, as trained": "@val-gamma-0",
}


def write_tables(folder: Path, titles: Mapping[str, str], seeds: Sequence[str]) -> None:
    """Writes `tables.md` and `tables.json` for the units that are complete in every seed."""
    complete = {
        name: title
        for name, title in titles.items()
        if all((folder / f"{name}-{seed}" / "done.json").is_file() for seed in seeds)
    }
    parts, facts = [], {}
    for place, meaning in PLACES.items():
        systems = {name: [score(folder / f"{name}-{seed}", place) for seed in seeds] for name in complete}
        present = {n: [r for r in runs if r is not None] for n, runs in systems.items() if None not in runs}
        text, facts[place] = comparison_table(present, complete, HEADINGS, dict.fromkeys(present, OURS))
        parts.append(f"**{place}**: {meaning}.\n\n{text}")
    found = "\n\n".join(parts) + "\n"
    (folder / "tables.md").write_text(found, encoding="utf-8")
    (folder / "tables.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    print(found)


def score(unit: Path, place: str) -> Run | None:
    """The scores of one unit in one place; None where the unit has no such adapter."""
    if place == "unseen hospital":
        files = sorted(unit.glob(f"*{UNSEEN}/predictions_generic.jsonl"))
        models = [read_predictions(file) for file in files]
        return Run(averaged([statistics(model) for model in models]), patients(models[0])) if models else None
    studies: list[Prediction] = []
    for site in SITES:
        generic = unit / site / "predictions_generic.jsonl"
        own = unit / (site + FOLDERS.get(place, "")) / "predictions_personalised.jsonl"
        if place != "participants" and not own.is_file():
            return None
        wants_own = own.is_file() and place != "participants, generic adapter"
        studies += read_predictions(own if wants_own else generic)
    return Run(statistics(studies), patients(studies))


def statistics(studies: list[Prediction]) -> dict[str, Statistic]:
    """The columns' statistics of one list of predictions."""
    found = prediction_statistics(studies)
    return {name: found[name] for name in COLUMNS}


def patients(studies: Sequence[Prediction]) -> list[tuple[str, str]]:
    """The patient of each study, all of whose studies are drawn together."""
    return [(item.site, item.patient_id or f"study {item.study_id}") for item in studies]


def averaged(models: list[dict[str, Statistic]]) -> dict[str, Statistic]:
    """The mean over several models of each metric on the same studies, still one row a study."""
    return {name: _mean([model[name] for model in models]) for name in models[0]} if models else {}


def _mean(items: list[Statistic]) -> Statistic:
    edges = np.cumsum([item.sums.shape[1] for item in items])[:-1]

    def value(sums: np.ndarray) -> np.ndarray:
        columns = np.split(sums, edges, axis=-1)
        return np.mean([item.score(part) for item, part in zip(items, columns, strict=True)], axis=0)

    return Statistic(np.concatenate([item.sums for item in items], axis=1), value)
