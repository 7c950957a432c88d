# SPDX-License-Identifier: Apache-2.0
"""Comparisons on a simulated clock: equal times for all, and the hospitals of the positive control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from method_comparison.tasks.client_selection import SelectionMethod, measured, taking_part
from method_comparison.tasks.question_hospitals import (
    Grid,
    QuestionSettings,
    cohort_folder,
    write_hospitals,
)


class Counting:
    """Judge whose accuracy is what the state says."""

    def __init__(self) -> None:
        self.tests = 0

    def accuracy(self, state: Any) -> float:
        self.tests += 1
        return float(state["w"])


def run(ends: list[float], horizon: float = 100.0, checks: int = 4) -> tuple[list[tuple[float, float]], int]:
    """Rounds that end at these times, each of which makes the state its own end / 1000."""
    judge = Counting()
    grid = Grid(judge, horizon, checks, {"w": 0.0})  # type: ignore[arg-type]
    for end in ends:
        grid.advance(end, {"w": end / 1000})
    return grid.finish(), judge.tests


def test_fast_and_slow_rounds_are_measured_at_the_same_times() -> None:
    fast, _ = run([float(end) for end in range(1, 102)])
    slow, tests = run([60.0, 120.0])
    assert [time for time, _ in fast] == [time for time, _ in slow] == [25.0, 50.0, 75.0, 100.0]
    assert [value for _, value in fast] == [0.025, 0.05, 0.075, 0.1]
    assert [value for _, value in slow] == [0.0, 0.0, 0.06, 0.06], "the state that was there at that time"
    assert tests == 2, "one test for each different state"


def test_a_round_that_ends_with_the_last_check_counts() -> None:
    assert run([100.0])[0] == [(25.0, 0.0), (50.0, 0.0), (75.0, 0.0), (100.0, 0.1)]


def test_the_accuracy_at_the_end_is_of_the_same_span_whatever_the_number_of_rounds() -> None:
    curve = [(float(100 * i), i / 16) for i in range(1, 17)]
    reports = [{"trained": 2, "solution": {"variance": 1.5}}] * 3
    values = measured(curve, 1600.0, 1700.0, reports, 10).values
    assert values["accuracy_end"] == pytest.approx((13 + 14 + 15 + 16) / 4 / 16)
    assert values["accuracy_mean"] == pytest.approx(sum(range(1, 17)) / 256)
    assert values["minutes_to_40"] == pytest.approx(700 / 60)
    assert measured(curve, 600.0, 700.0, reports, 10).times["50"].reached is False


def test_every_fifth_hospital_of_the_control_learns_wrong_answers_and_is_tested_on_right_ones(
    tmp_path: Path,
) -> None:
    settings = QuestionSettings(hospitals=5, questions=8, diseases=2, groups=2)
    for partition in ("iid", "outliers"):
        write_hospitals(settings, partition, 0, tmp_path)

    def rows(partition: str, site: str) -> list[dict[str, Any]]:
        path = cohort_folder(tmp_path, partition, 0) / site / "questions.jsonl"
        return [json.loads(line) for line in path.open()]

    for site in ("site-1", "site-5"):
        for right, row in zip(rows("iid", site), rows("outliers", site), strict=True):
            wrong = site == "site-5" and row["split"] == "train"
            assert (row["answer"] != right["answer"]) == wrong
            assert row["options"] == right["options"]


def test_what_there_is_to_gain_is_of_the_hospitals_with_right_answers() -> None:
    names = [f"site-{number}" for number in range(1, 11)]
    knows, draws = (SelectionMethod(rule="uniform_selection", honest=honest) for honest in (True, False))
    assert set(names) - set(taking_part(knows, "outliers", names)) == {"site-5", "site-10"}
    assert taking_part(knows, "iid", names) == taking_part(draws, "outliers", names) == names
    assert "honest" not in draws.model_dump(), "results of before keep their settings"
