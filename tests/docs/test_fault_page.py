# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results/faults.md, from rows whose result is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import fault_table

WRITE = fault_table.WRITES


def row(test: str, what: str, phase: str, outcome: str = "passed") -> dict[str, object]:
    return {
        "test": test,
        "what": what,
        "phase": phase,
        "result": "equal",
        "outcome": outcome,
        "seconds": 1.0,
        "date": "2026-11-24",
    }


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, object]]:
    """What a file of three runs comes to: the last result of a test counts, a skipped one does not."""
    written = [
        row("a", "server killed", "training", "failed"),
        row("a", "server killed", "training"),
        row("b", "server killed", "saving", "failed"),
        row("c", "disk full", "saving", "skipped"),
        row("d", WRITE, "any write: toy weighted_mean, int8 with error feedback"),
        row("e", WRITE, "any write: quadratic scaffold m=2 masking"),
        row("f", WRITE, "any write: toy weighted_mean he", "failed"),
        row("g", WRITE, "any write: visit temporal lr=0.05"),
    ]
    file = tmp_path / "faults.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in written))
    return fault_table.read_rows(file)


def test_faults_are_counted_with_their_phases(rows: list[dict[str, object]]) -> None:
    table = fault_table.fault_table(rows)
    assert "| server killed | training; saving | equal | 2 | 1 |" in table
    assert "disk full" not in table
    assert "6 faults × phases, 6 tests, 4 passed; run 2026-11-24." in table


def test_rules_are_rows_and_protections_columns(rows: list[dict[str, object]]) -> None:
    lines = fault_table.resume_table(rows).splitlines()
    assert "| weighted_mean |  | equal |  |  | **differs** |" in lines
    assert "| scaffold |  |  |  | equal |  |" in lines
    assert "| temporal over rounds of visits (FedTAR) | equal |  |  |  |  |" in lines


def test_a_table_is_put_into_its_place_only(tmp_path: Path) -> None:
    page, (begin, end) = tmp_path / "page.md", fault_table.MARKS["faults"]
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    fault_table.write(page, {"faults": "new"})
    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(SystemExit, match="has no place"):
        fault_table.write(page, {"resume": "new"})
