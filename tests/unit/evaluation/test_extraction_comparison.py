# SPDX-License-Identifier: Apache-2.0
"""The comparison of extraction: places, single-site models, and what a unit trains with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel
from test_extraction_metrics import invent

from method_comparison.tasks.base import ShownRow
from method_comparison.tasks.extraction import (
    Extraction,
    ExtractionMethod,
    ExtractionSettings,
    learner_settings,
)

SETTINGS = ExtractionSettings()
SITES = ("site-1", "site-2", "site-3")


def write(path: Path, items: Sequence[BaseModel]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))


def predictions(folder: Path, sites: Sequence[str], skill: float) -> None:
    for site in sites:
        items = invent(12, skill, said=0)
        notes = [
            item.model_copy(update={"site": site, "patient_id": f"p{i // 2}"}) for i, item in enumerate(items)
        ]
        write(folder / site / "predictions.jsonl", notes)


def test_every_place_has_its_scores_and_patients(tmp_path: Path) -> None:
    predictions(tmp_path, (*SITES, "site-4"), 0.9)
    found = Extraction().places(SETTINGS, "synthetic", tmp_path)
    assert list(found) == ["participants, pooled", "site-4, which took no part", *SITES]
    pooled, one = found["participants, pooled"], found["site-1"]
    assert len(pooled.scores["ner_strict_f1"]) == 3 * len(one.scores["ner_strict_f1"])
    assert len(set(one.groups_of("ner_strict_f1"))) == 6


def test_single_site_models_are_averaged_and_shown_as_a_matrix(tmp_path: Path) -> None:
    for source, skill in zip(SITES, (0.9, 0.5, 0.1), strict=True):
        predictions(tmp_path / source, (*SITES, "site-4"), skill)
    task = Extraction()
    found = task.places(SETTINGS, "synthetic", tmp_path)
    own = found["single sites, each on its own notes (ML-13)"]
    assert len(own.scores["ner_strict_f1"]) == len(found["participants, pooled"].scores["ner_strict_f1"])
    rows = {"single": ShownRow(title="single site", settings=SETTINGS, folders={0: tmp_path})}
    table = task.notes("synthetic", rows)[1].splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {site}" for site in SITES]
    first, last = (float(line.split("| ")[2].split(" /")[0]) for line in (table[2], table[4]))
    assert first > last, "the better model's row is higher"


def test_a_unit_that_was_not_tested_everywhere_has_no_such_place(tmp_path: Path) -> None:
    predictions(tmp_path, SITES, 0.9)
    assert "site-4, which took no part" not in Extraction().places(SETTINGS, "synthetic", tmp_path)


@pytest.mark.parametrize(
    ("own", "given", "key", "value"),
    [
        ({}, {"epochs": 2}, "local_epochs", 2),
        ({"settings": {"sharing": "fedsa"}}, {}, "sharing", "fedsa"),
        ({"learner": "token_classification"}, {"epochs": 2}, "local_epochs", 10),
        ({}, {"learner": {"max_tokens": 77}}, "max_tokens", 77),
    ],
)
def test_a_methods_settings_are_the_jobs_with_the_comparisons_and_its_own_changes(
    own: dict, given: dict, key: str, value: object
) -> None:
    found = learner_settings(ExtractionSettings(**given), ExtractionMethod(**own))
    assert found[key] == value


def test_a_changed_rate_keeps_the_jobs_other_settings_of_the_optimiser() -> None:
    usual = learner_settings(SETTINGS, ExtractionMethod())["optimiser"]
    changed = learner_settings(SETTINGS, ExtractionMethod(settings={"optimiser": {"lr": 0.5}}))["optimiser"]
    assert changed == {**usual, "lr": 0.5}
