# SPDX-License-Identifier: Apache-2.0
"""The tables of study_fedvit_gpt2.py, from its predictions and its rounds.json alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from medflare.evaluation.meteor import meteor
from medflare.evaluation.predictions import Prediction, prediction_statistics
from medflare.evaluation.report_metrics import single_references, tokenised
from medflare.reporting.metric_names import display_name
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run, comparison_table
from study_tables import patients
from study_units import unit_folder

COLUMNS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider", "label_f1")
REFERENCE = "fedavg"
HEADINGS = {name: display_name(name) for name in COLUMNS}


def tables(out: Path, titles: Mapping[str, str], sites: Sequence[str], seeds: Sequence[str]) -> str:
    """Markdown: pooled, every site, how different the reports are, and what the rules did."""
    file = "predictions_generic.jsonl"
    read = {
        (name, seed, site): read_predictions(unit_folder(out, name, seed) / site / file)
        for name in titles
        for seed in seeds
        for site in sites
    }
    parts = []
    for place, members in {"all sites, pooled": sites, **{site: [site] for site in sites}}.items():
        studies = {n: [[p for s in members for p in read[n, seed, s]] for seed in seeds] for n in titles}
        count = len(next(iter(studies.values()))[0])
        scores = {name: [scored(items) for items in runs] for name, runs in studies.items()}
        constant = [scored(most_common(items)) for items in next(iter(studies.values()))]
        systems, named = {**scores, "constant": constant}, {**titles, "constant": "the most common report"}
        text, _ = comparison_table(systems, named, HEADINGS, dict.fromkeys(systems, REFERENCE))
        parts.append(f"**{place}**, {count} test studies\n\n{text}")
    different = {n: mean(_distinct(read, n, seed, sites) for seed in seeds) for n in titles}
    said = ", ".join(f"{titles[name]} {count:g}" for name, count in different.items())
    parts += [
        f"Different reports among those drafted, mean of seeds: {said}.",
        *what_rules_did(out, titles, seeds),
    ]
    return "\n\n".join(parts) + "\n"


def scored(studies: Sequence[Prediction]) -> Run:
    found = prediction_statistics(studies)
    references = single_references(tokenised([item.reference for item in studies]))
    found["meteor"] = meteor(references, tokenised([item.generated for item in studies]))
    return Run({name: found[name] for name in COLUMNS}, patients(studies))


def most_common(studies: Sequence[Prediction]) -> list[Prediction]:
    """Every study with the commonest reference of its own site, which no image was looked at for."""
    best = {
        site: Counter(item.reference for item in studies if item.site == site).most_common(1)[0][0]
        for site in {item.site for item in studies}
    }
    codes = {item.reference: item.gold_codes for item in studies}
    return [
        item.model_copy(update={"generated": best[item.site], "predicted_codes": codes[best[item.site]]})
        for item in studies
    ]


def _distinct(
    read: Mapping[tuple[str, str, str], Sequence[Prediction]], name: str, seed: str, sites: Sequence[str]
) -> int:
    drafted = [item.generated for site in sites for item in read[name, seed, site]]
    return len(set(drafted))


def what_rules_did(out: Path, titles: Mapping[str, str], seeds: Sequence[str]) -> Iterator[str]:
    """Mean weights and, for rules that choose, how often each site was chosen."""
    for name, title in titles.items():
        reports = [
            entry["rule"]
            for seed in seeds
            for entry in json.loads((unit_folder(out, name, seed) / "rounds.json").read_text())
            if not entry["owner"]
        ]
        weights = [report["weights"] for report in reports if len(report.get("weights", {})) > 1]
        if weights:
            means = ", ".join(f"{site} {mean(w[site] for w in weights):.3f}" for site in weights[0])
            yield f"{title}: mean weight {means}."
        chosen = Counter(site for report in reports for site in report.get("selected", ()))
        if chosen:
            counts = ", ".join(f"{site} {count}" for site, count in sorted(chosen.items()))
            yield f"{title}: chosen in {len(reports)} rounds: {counts}."
