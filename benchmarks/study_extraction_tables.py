# SPDX-License-Identifier: Apache-2.0
"""The tables of the extraction studies, from their predictions files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.evaluation.extraction_statistics import task_scores
from medflare.evaluation.statistics import Statistic, difference_over_seeds, over_seeds
from medflare.tasks.prediction_files import read_documents
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
Runs = dict[str, list[dict[str, Statistic]]]


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
        runs: Runs = {m: [score(unit_folder(out, m, seed), names) for seed in seeds] for m in titles}
        if "single" in titles and not set(names) & set(unseen):
            runs[OWN] = [own_score(unit_folder(out, "single", seed), names) for seed in seeds]
        runs = {m: found for m, found in runs.items() if found and all(found)}
        text, facts[place] = table(runs, {**titles, OWN: "single site, each on its own tests"})
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


def score(unit: Path, sites: Sequence[str]) -> dict[str, Statistic]:
    """Metric -> what every note adds; the mean over a unit's models where single sites have one each."""
    if (unit / sites[0] / sites[0]).is_dir() or not (unit / sites[0] / PREDICTIONS).is_file():
        models = sorted({file.parent.parent for file in unit.glob(f"*/{sites[0]}/{PREDICTIONS}")})
    else:
        models = [unit]
    return averaged([statistics([model / site / PREDICTIONS for site in sites]) for model in models])


def own_score(unit: Path, sites: Sequence[str]) -> dict[str, Statistic]:
    """Every site's own model on its own notes: what a hospital has if it stays alone (ML-13)."""
    files = [unit / site / site / PREDICTIONS for site in sites]
    return statistics(files) if all(file.is_file() for file in files) else {}


def statistics(files: Sequence[Path]) -> dict[str, Statistic]:
    """The columns' statistics of the notes of several files."""
    parts = task_scores([item for file in files for item in read_documents(file)])
    return {
        name: item for part in parts.values() for name, item in part.statistics.items() if name in COLUMNS
    }


def table(runs: Runs, titles: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Markdown and facts: mean over seeds, interval, and the difference to Fed-MedLoRA on the same notes.

    Rows of AGAINST are compared with the row named there.
    """
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---:|" * len(COLUMNS)]
    facts: dict[str, Any] = {}
    for name, found in runs.items():
        cells, facts[name] = [titles[name]], {}
        for metric in COLUMNS:
            mine = [run[metric] for run in found if metric in run]
            if len(mine) < len(found):
                cells.append("-")
                continue
            estimate = over_seeds(mine)
            cell = f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
            facts[name][metric] = {"seeds": [run.value for run in mine], **estimate.model_dump()}
            cell += gap_of(runs, name, metric, mine, facts[name][metric])
            cells.append(cell)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines), facts


def gap_of(runs: Runs, name: str, metric: str, mine: list[Statistic], facts: dict[str, Any]) -> str:
    """` (+x*)`: this minus what it is compared with, where both have the same notes; a star at p < 0.05."""
    other = AGAINST.get(name, OURS)
    if name == other or other not in runs or metric == "parse_failure_rate":
        return ""
    theirs = [run[metric] for run in runs[other] if metric in run]
    if len(theirs) != len(mine) or any(len(a) != len(b) for a, b in zip(mine, theirs, strict=True)):
        return ""
    gap = difference_over_seeds(mine, theirs)
    facts[f"minus_{other}"] = {"value": gap.value, "low": gap.low, "high": gap.high, "p": gap.p}
    return f" ({100 * gap.value:+.1f}{'*' if gap.significant else ''})"


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
                statistics([unit_folder(out, "single", seed) / source / site / "predictions.jsonl"])
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
