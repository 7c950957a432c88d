# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows of a run that goes on: phase, time left, and each site's step."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from medflare.recipes.progress_view import line, live
from medflare.recipes.run_board import Board
from medflare.worker.progress_file import TaskProgress, write_progress

ROUND = {"phase": "round", "round": 0, "rounds": 3, "sites": ["north", "south"], "time": 100.0}


def board_of(*events: dict[str, object]) -> Board:
    board = Board(began=90.0)
    for event in events:
        board.take(event)
    return board


def test_before_a_round_is_done_the_slowest_site_tells_how_long_one_takes() -> None:
    tasks = {
        "north": TaskProgress(task="fit", counted="steps", done=20, total=40),
        "south": TaskProgress(task="fit", counted="steps", done=10, total=40),
    }
    board = board_of(ROUND)
    assert board.headline(110.0, tasks) == "round 1 of 3 · 20 s so far · about 1 min 50 s of training left"
    assert board.headline(110.0) == "round 1 of 3 · 20 s so far"


def test_afterwards_the_median_of_the_rounds_does() -> None:
    done = {"phase": "round done", "round": 0, "seconds": 30.0, "mean": {}, "time": 130.0}
    board = board_of(ROUND, done, ROUND | {"round": 1, "time": 130.0})
    assert board.seconds_left(140.0) == pytest.approx(20 + 30)
    assert board.seconds_left(300.0) == pytest.approx(30)


def test_a_final_test_has_no_training_left_and_names_its_sites() -> None:
    board = board_of(ROUND, {"phase": "testing", "sites": ["north", "west"], "time": 200.0})
    assert board.headline(210.0) == "testing · 2 min 0 s so far"
    assert sorted(board.rows) == ["north", "south", "west"]


def test_a_visit_of_a_temporal_round_is_named_in_its_round() -> None:
    board = board_of(ROUND | {"visit": 1, "visits": 4})
    assert board.title == "round 1 of 3, visit 2 of 4"


def test_lines_count_rounds_from_one() -> None:
    assert line({"phase": "update", "round": 0, "site": "north"}) == "update: round=1 site=north"


def test_lines_are_words_not_code() -> None:
    assert line({"phase": "checking", "reason": "the job and its data"}) == "checking: the job and its data"
    facts = {"new": [], "sites": ["north", "south"], "without": {"north": "no block", "south": 0.12345}}
    assert (
        line({"phase": "sketches", **facts})
        == "sketches: sites=north,south without=north: no block; south: 0.1235"
    )


def test_a_terminal_has_its_first_line_before_any_event_and_each_sites_step(tmp_path: Path) -> None:
    worker = tmp_path / "north" / "simulate_job" / "worker"
    worker.mkdir(parents=True)
    write_progress(worker, TaskProgress(task="fit", counted="steps", done=7, total=30))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    display, take = live(console, tmp_path)
    with display:
        assert "starting · 0.0 s so far" in plain(console)
        take(ROUND)
    assert re.search(r"north +│ step 7 of 30", plain(console))
    assert re.search(r"south +│ training", plain(console))


def plain(console: Console) -> str:
    """What a console's file holds, without colours."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"task": "fit", "more": 1})])
def test_a_file_that_is_half_written_or_of_another_version_says_nothing(content: str, tmp_path: Path) -> None:
    from medflare.worker.progress_file import NAME, read_progress

    (tmp_path / NAME).write_text(content)
    assert read_progress(tmp_path) is None
