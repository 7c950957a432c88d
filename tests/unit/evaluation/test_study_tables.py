# SPDX-License-Identifier: Apache-2.0
"""The tables of the studies, from predictions that are made up: what stands in them and what does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

import study_fedvit_tables
import study_tables
from medflare.evaluation.predictions import Prediction
from study_units import DONE, unit_folder

SEEDS = [str(seed) for seed in range(5)]
REPORTS = ("the heart is enlarged", "the lungs are clear", "there is a small left effusion")
TITLES = {"fedmrg": "FedMRG", "poor": "Poor"}


def study(site: str, number: int, generated: str) -> Prediction:
    codes = tuple(int(i == number % 3) for i in range(14))
    return Prediction(
        study_id=f"{site}-{number}",
        patient_id=f"p{number // 2}",
        site=site,
        adapter="generic",
        reference=REPORTS[number % 3],
        generated=generated,
        gold_codes=codes,
        predicted_codes=codes if generated == REPORTS[number % 3] else (0,) * 14,
    )


def written(path: Path, items: Sequence[BaseModel]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))


def studies(site: str, right: int) -> list[Prediction]:
    """Twelve studies, of which so many are written as the radiologist did."""
    return [study(site, i, REPORTS[i % 3] if i < right else "nothing") for i in range(12)]


@pytest.fixture
def fedmrg(tmp_path: Path) -> Path:
    """Five seeds of a method that gets 11 or 10 studies of 12 right, and of one that gets 3 or 4."""
    for seed in SEEDS:
        for name, right in (("fedmrg", 10 + int(seed) % 2), ("poor", 3 + int(seed) % 2)):
            unit = tmp_path / f"{name}-{seed}"
            for site in study_tables.SITES:
                written(unit / site / "predictions_generic.jsonl", studies(site, right))
            written(unit / study_tables.UNSEEN / "predictions_generic.jsonl", studies("hospital-4", right))
            (unit / DONE).write_text("{}")
    return tmp_path


def rows(text: str) -> dict[str, list[str]]:
    """First cell -> the others, of the last row with that name in each table in turn."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    return {row[0]: row[1:] for row in cells}


def test_fedmrgs_tables_hold_complete_methods_and_differences_to_fedmrg(fedmrg: Path) -> None:
    (fedmrg / "poor-3" / DONE).unlink()
    study_tables.write_tables(fedmrg, TITLES, SEEDS)
    assert "Poor" not in (fedmrg / "tables.md").read_text(), "one seed is missing"
    (fedmrg / "poor-3" / DONE).write_text("{}")
    study_tables.write_tables(fedmrg, TITLES, SEEDS)
    text = (fedmrg / "tables.md").read_text()
    for place in ("participants", "unseen hospital"):
        assert f"**{place}**" in text
    assert all(cell.endswith("*)") and "(-" in cell for cell in rows(text)["Poor"])
    assert "(" not in "".join(rows(text)["FedMRG"])
    facts = json.loads((fedmrg / "tables.json").read_text())
    gap = facts["participants"]["poor"]["bleu_4"]["minus_fedmrg"]
    assert gap["seeds"] == 5
    assert gap["low"] <= gap["value"] <= gap["high"] < 0


def test_three_seeds_of_fedmrg_have_no_star(fedmrg: Path) -> None:
    study_tables.write_tables(fedmrg, TITLES, SEEDS[:3])
    assert "*)" not in (fedmrg / "tables.md").read_text()


def test_fedvits_tables_have_a_row_that_looks_at_no_image(tmp_path: Path) -> None:
    sites = ["site-1", "site-2"]
    entry = {"owner": "", "rule": {"weights": {"site-1": 0.25, "site-2": 0.75}, "selected": ["site-2"]}}
    for seed in SEEDS:
        for name, right in (("fedavg", 10 + int(seed) % 2), ("krum", 2)):
            unit = unit_folder(tmp_path, name, seed)
            for site in sites:
                written(unit / site / "predictions_generic.jsonl", studies(site, right))
            (unit / "rounds.json").write_text(json.dumps([entry]))
    text = study_fedvit_tables.tables(tmp_path, {"fedavg": "FedAvg", "krum": "Krum"}, sites, SEEDS)
    assert "**all sites, pooled**, 24 test studies" in text
    assert "*)" in "".join(rows(text)["Krum"])
    assert "the most common report" in rows(text)
    assert "Krum: chosen in 5 rounds: site-2 5." in text
    assert "Krum: mean weight site-1 0.250, site-2 0.750." in text
