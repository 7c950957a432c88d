# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort make --visits` and what `inspect` says of patients who come again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medflare.cli.main import app


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("visits")
    options = ["--visits", "3", "--patients", "5", "--size", "32", "--no-sheet", "--json"]
    made = CliRunner().invoke(app, ["cohort", "make", str(out), *options])
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["hospitals"]["site-1"]["patients"] == 5
    return out


def inspect(*arguments: str) -> str:
    shown = CliRunner().invoke(app, ["cohort", "inspect", *arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_visits_gaps_people_and_missing_ones_are_told(hospitals: Path) -> None:
    facts = json.loads(inspect(str(hospitals / "site.yaml"), "--site", "site-2", "--json"))["visits"]
    assert facts["T"] == 3
    assert facts["patients_with"] == {"3": 5}
    assert facts["gaps"] == {"count": 10, "unknown": 0, "min": 42, "median": 42, "max": 42}
    assert facts["age"]["unknown"] == 0
    assert sum(facts["sex"].values()) == 5
    assert [sum(counts) for counts in zip(*facts["per_visit"].values(), strict=True)] == [5, 5, 5]


def test_people_see_the_same_as_a_table(hospitals: Path) -> None:
    shown = inspect(str(hospitals / "site.yaml"), "--site", "site-2")
    for words in (
        "visits, T = 3",
        "5 with 3",
        "days between visits",
        "years at the first",
        "nothing skipped",
    ):
        assert words in shown


def test_a_site_where_everyone_came_once_is_told_what_that_means(tmp_path: Path) -> None:
    made = CliRunner().invoke(
        app, ["cohort", "make", str(tmp_path), "--patients", "3", "--size", "32", "--no-sheet"]
    )
    assert made.exit_code == 0
    folder = tmp_path / "site-1"
    (folder / "site.yaml").write_text("cohort: {format: manifest, root: ., visits: {}}\n")
    assert "every patient has one visit" in inspect(str(folder))
    assert "visits, T" not in inspect(str(folder), "--format", "manifest")


def test_visits_below_one_are_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["cohort", "make", str(tmp_path), "--visits", "0"])
    assert refused.exit_code == 2
