# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort make --visits` and what `inspect` says of patients who come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import answer, facts, refusal


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("visits")
    output = facts("cohort", "make", out, "--visits", 3, "--patients", 5, "--size", 32, "--no-sheet")
    assert output["hospitals"]["site-1"]["patients"] == 5
    return out


def test_visits_gaps_people_and_missing_ones_are_told(hospitals: Path) -> None:
    visits = facts("cohort", "inspect", hospitals / "site.yaml", "--site", "site-2")["visits"]
    assert visits["T"] == 3
    assert visits["patients_with"] == {"3": 5}
    assert visits["gaps"] == {"count": 10, "unknown": 0, "min": 42, "median": 42, "max": 42}
    assert visits["age"]["unknown"] == 0
    assert sum(visits["sex"].values()) == 5
    assert [sum(counts) for counts in zip(*visits["per_visit"].values(), strict=True)] == [5, 5, 5]


def test_people_see_the_same_as_a_table(hospitals: Path) -> None:
    shown = answer("cohort", "inspect", hospitals / "site.yaml", "--site", "site-2")
    for words in (
        "visits, T = 3",
        "5 with 3",
        "days between visits",
        "years at the first",
        "nothing skipped",
    ):
        assert words in shown


def test_a_site_where_everyone_came_once_is_told_what_that_means(tmp_path: Path) -> None:
    answer("cohort", "make", tmp_path, "--patients", 3, "--size", 32, "--no-sheet")
    folder = tmp_path / "site-1"
    (folder / "site.yaml").write_text("cohort: {format: manifest, root: ., visits: {}}\n")
    assert "every patient has one visit" in answer("cohort", "inspect", folder)
    assert "visits, T" not in answer("cohort", "inspect", folder, "--format", "manifest")


def test_visits_below_one_are_refused(tmp_path: Path) -> None:
    refusal(2, "cohort", "make", tmp_path, "--visits", 0)
