# SPDX-License-Identifier: Apache-2.0
"""The table of study_async.py, from curves whose means are known."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from study_async import mean_over_time, table
from study_units import unit_folder


def test_the_mean_over_time_counts_each_value_until_the_next() -> None:
    assert mean_over_time([(100.0, 0.4), (300.0, 0.8)], 500.0) == pytest.approx(0.4 * 0.4 + 0.4 * 0.8)
    assert mean_over_time([(100.0, 0.4), (600.0, 0.8)], 500.0) == pytest.approx(0.8 * 0.4)


def test_a_difference_of_five_seeds_is_marked_and_one_of_noise_is_not(tmp_path: Path) -> None:
    noise = [0.01, -0.01, 0.02, -0.02, 0.0]
    for seed in range(5):
        for row, end in (("sync", 0.3), ("2", 0.5 + noise[seed]), ("3", 0.3 + noise[seed])):
            folder = unit_folder(tmp_path, f"uneven-{row}", seed)
            folder.mkdir()
            facts = {"curve": [(0.0, 0.2), (1800.0, end)], "rounds": 7, "updates": 35}
            (folder / "curve.json").write_text(json.dumps(facts))
    given = argparse.Namespace(out=tmp_path, hours=0.5)
    lines = table(given, [str(seed) for seed in range(5)]).splitlines()
    assert lines[2] == "| uneven | of all | 7 | 35 | 20.0 | 30.0 |"
    assert lines[3].startswith("| uneven | of 3 | 7 | 35 | 20.0 (+0.0 [+0.0, +0.0]) | 30.0 (+0.0 [")
    assert lines[4].startswith("| uneven | of 2 | 7 | 35 | 20.0 (+0.0 [+0.0, +0.0]) | 50.0 (+20.0* [")
