# SPDX-License-Identifier: Apache-2.0
"""The tables of the extraction studies, from their predictions files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.evaluation.extraction_statistics import task_scores
from medflare.evaluation.statistics import Statistic
from medflare.tasks.prediction_files import read_documents
from method_comparison.comparison_table import Run, comparison_table
from study_tables import averaged
from study_units import unit_folder

COLUMNS = {
    "ner_strict_f1": "NER strict",
    "ner_lenient_f1": "NER lenient",
    "re_gold_strict_f1": "RE strict, gold heads",
    "re_e2e_strict_f1": "RE strict, end to end",
    "parse_failure_rate": "malformed",
}
OURS, PREDICTIONS = "fed_medlora", "predictions.jsonl"
AGAINST = {"corrupted_plus": "corrupted", "corrupted_plus_1": "corrupted"}
"""What a row is compared with where it is not Fed-MedLoRA."""
OWN = "single, own tests"


def write_tables(
    out: Path, titles: Mapping[str, str], seeds: Sequence[str], sites: Sequence[str], unseen: Sequence[str]
) -> None:
    """Writes `tables.md` and `tables.json` for methods that are complete in every seed.

    Single-site models are averaged over sources as the paper does, and shown in full as a matrix (ML-13).
    """
    places = {"participants, pooled": [s for s in sites if s not in unseen]}
    places |= {f"{name}, which took no part": [name] for name in unseen}
    places |= {name: [name] for name in sites if name not in unseen}
    parts, facts = [], dict[str, Any]()
    for place, names in places.items():
        runs = {m: [score(unit_folder(out, m, seed), names) for seed in seeds] for m in titles}
        if "single" in titles and not set(names) & set(unseen):
            runs[OWN] = [own_score(unit_folder(out, "single", seed), names) for seed in seeds]
        runs = {m: found for m, found in runs.items() if found and all(run.scores for run in found)}
        every = {**titles, OWN: "single site, each on its own tests"}
        against = {name: AGAINST.get(name, OURS) for name in runs}
        text, facts[place] = comparison_table(runs, every, COLUMNS, against, untested=["parse_failure_rate"])
        parts.append(f"**{place}**\n\n{text}")
    parts.append(
        "**single site: source x test, NER strict / RE strict with gold heads**\n\n"
        + matrix(out, seeds, sites)
    )
    parts.append(f"**traffic of one site in one round, both directions**\n\n{traffic(out, titles, seeds)}")
    found = "\n\n".join(part for part in parts if part) + "\n"
    (out / "tables.md").write_text(found, encoding="utf-8")
    (out / "tables.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    print(found)


def score(unit: Path, sites: Sequence[str]) -> Run:
    """What every note adds to each metric; the mean over a unit's models where single sites have one each."""
    if (unit / sites[0] / sites[0]).is_dir() or not (unit / sites[0] / PREDICTIONS).is_file():
        models = sorted({file.parent.parent for file in unit.glob(f"*/{sites[0]}/{PREDICTIONS}")})
    else:
        models = [unit]
    runs = [scored([model / site / PREDICTIONS for site in sites]) for model in models]
    return Run(averaged([dict(run.scores) for run in runs]), runs[0].groups if runs else {})


def own_score(unit: Path, sites: Sequence[str]) -> Run:
    """Every site's own model on its own notes: what a hospital has if it stays alone (ML-13)."""
    files = [unit / site / site / PREDICTIONS for site in sites]
    return scored(files) if all(file.is_file() for file in files) else Run({}, {})


def scored(files: Sequence[Path]) -> Run:
    """The columns' statistics of the notes of several files; notes of one patient are drawn together."""
    parts = task_scores([item for file in files for item in read_documents(file)])
    wanted = {name: part for part in parts.values() for name in part.statistics if name in COLUMNS}
    scores = {name: part.statistics[name] for name, part in wanted.items()}
    return Run(scores, {name: part.units for name, part in wanted.items()})


def matrix(out: Path, seeds: Sequence[str], sites: Sequence[str]) -> str:
    """Every single-site model on every site's test notes, mean over seeds."""
    sources = sorted({p.parent.parent.name for p in out.glob(f"single-{seeds[0]}/*/*/predictions.jsonl")})
    if not sources:
        return ""
    lines = ["| trained at | " + " | ".join(sites) + " |", "|---|" + "---:|" * len(sites)]
    for source in sources:
        cells = [source]
        for site in sites:
            found = [
                scored([unit_folder(out, "single", seed) / source / site / PREDICTIONS]).scores
                for seed in seeds
            ]
            both = (_mean(found, "ner_strict_f1"), _mean(found, "re_gold_strict_f1"))
            cells.append(" / ".join(both))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(found: Sequence[Mapping[str, Statistic]], metric: str) -> str:
    values = [item[metric].value for item in found if metric in item]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"


def traffic(out: Path, titles: Mapping[str, str], seeds: Sequence[str]) -> str:
    """Bytes as counted from the messages' tensors, against fp32."""
    rows = {}
    for name in titles:
        file = unit_folder(out, name, seeds[0]) / "rounds.json"
        if file.is_file():
            found = json.loads(file.read_text())
            sites = list(found["traffic"].values())
            rows[name] = sum(s["sent"] + s["received"] for s in sites) / len(sites) / len(found["rounds"])
    if OURS not in rows:
        return ""
    lines = ["| | bytes | of fp32 A and B |", "|---|---:|---:|"]
    lines += [f"| {titles[name]} | {value:,.0f} | {value / rows[OURS]:.3f} |" for name, value in rows.items()]
    return "\n".join(lines)
