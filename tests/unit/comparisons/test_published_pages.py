# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/results against the data they were made of: nothing was mistyped, left behind or edited."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from method_comparison.__main__ import main

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs/results/comparisons"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
INTERVAL = re.compile(r"(-?[\d.]+)(?:\\?\*)* \[\+?(-?[\d.]+), \+?(-?[\d.]+)\]")
COMMAND = re.compile(r"^    python -m method_comparison (page .*)$", re.MULTILINE)
WITH_COMMAND = [page for page in sorted(PAGES.glob("*.md")) if COMMAND.search(page.read_text("utf-8"))]


def intervals(text: str) -> set[tuple[str, ...]]:
    """Return (value, lower, upper) of everything with an interval, whatever is bold or has a star."""
    return set(INTERVAL.findall(text.replace("**", "")))


def turned(interval: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same difference the other way round."""
    value, lower, upper = (number[1:] if number.startswith("-") else f"-{number}" for number in interval)
    return value, upper, lower


def write_page(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the page that `python -m method_comparison` writes with these arguments."""
    monkeypatch.chdir(ROOT)
    assert main([*arguments, "--pages", str(folder)]) == 0
    return (folder / f"{arguments[1]}.md").read_text(encoding="utf-8")


def test_there_are_pages_to_check() -> None:
    assert len(WITH_COMMAND) >= 14


@pytest.mark.parametrize("page", WITH_COMMAND, ids=lambda page: page.stem)
def test_a_page_is_what_its_command_writes(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and every number; drawn intervals may move a little with another version of SciPy."""
    published = page.read_text(encoding="utf-8")
    found = COMMAND.search(published)
    assert found is not None
    written = write_page(shlex.split(found[1]), tmp_path, monkeypatch)
    assert NUMBER.sub("0", written) == NUMBER.sub("0", published)
    numbers, expected = ([float(number) for number in NUMBER.findall(text)] for text in (written, published))
    assert numbers == pytest.approx(expected, abs=0.2, rel=0.02)


@pytest.mark.parametrize(
    ("page", "heading", "comparison", "runs"),
    [
        ("README.md", "## A real model on real notes", "real_entities", ["0", "0,1,2", "0,1,2,3,4"]),
        (
            "docs/results/real_notes.md",
            "## Entities of all",
            "real_entities",
            ["0", "0,1", "0,1,2", "0,1,2,3,4"],
        ),
        ("docs/results/real_notes.md", "## Twenty notes", "few_real_notes", ["0", "0,1", "0,1,2"]),
        ("docs/results/real_notes.md", "## All notes with modifiers", "real_notes", ["0", "0,1", "0,1,2"]),
    ],
)
def test_tables_written_by_hand_have_the_numbers_of_the_data(
    page: str,
    heading: str,
    comparison: str,
    runs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text[text.index(heading) :].split("\n## ")[0]
    shown = intervals("\n".join(line for line in section.splitlines() if line.startswith("|")))
    known = intervals((PAGES / f"{comparison}.md").read_text(encoding="utf-8"))
    for seeds in runs:
        arguments = ["page", comparison, "--out", "docs/results/data", "--seeds", seeds]
        known |= intervals(
            write_page([*arguments, "--methods", complete(comparison, seeds)], tmp_path, monkeypatch)
        )
    assert len(shown) > 5
    assert not shown - known - {turned(one) for one in known}


def complete(comparison: str, seeds: str) -> str:
    """Return the methods of which the data have all these seeds."""
    (partition,) = (ROOT / "docs/results/data" / comparison).iterdir()
    wanted = seeds.split(",")
    return ",".join(
        method.name
        for method in sorted(partition.iterdir())
        if all((method / seed / "result.json").is_file() for seed in wanted)
    )
