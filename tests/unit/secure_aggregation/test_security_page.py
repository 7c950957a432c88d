# SPDX-License-Identifier: Apache-2.0
"""The threat model and its pages: statements name tests, the tests exist, and no attack is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "explanation"
MODEL = (FOLDER / "security.md").read_text(encoding="utf-8")
DETAILS = ("masking_protocol.md", "homomorphic_encryption.md", "site_policy.md")
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
SECTIONS = ("Claims", "Attack, protection, outcome", "Limits")


@cache
def collected(file: Path) -> frozenset[str]:
    """Return the names of the functions that pytest collects from a module."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return frozenset(
        node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def rows_of(section: str) -> list[str]:
    """Return the rows of a section's tables, without their heads."""
    text = MODEL.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [
        line for line in text.splitlines() if line.startswith("|") and not re.match(r"\| id |\|[-|]+$", line)
    ]


CLAIMS = [row for section in SECTIONS for row in rows_of(section)]


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row.split("|")[1].strip())
def test_every_claim_names_tests_that_exist(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert re.fullmatch(r"[SAJORTLP]\d+", cells[0]), "a claim begins with its id"
    named = REFERENCE.findall(cells[-1])
    assert REFERENCE.sub("", cells[-1]).strip(" ,|") == "", "the last column holds tests and nothing else"
    assert named, "a claim without an attack test"
    assert [f"{file}::{test}" for file, test in named if test not in collected(ROOT / file)] == []


def test_ids_are_unique_and_in_order() -> None:
    ids = [row.split("|")[1].strip() for row in CLAIMS]
    numbers = {letter: [int(name[1:]) for name in ids if name[0] == letter] for letter in "SAJORTLP"}
    assert all(found == list(range(1, len(found) + 1)) and found for found in numbers.values()), numbers


def test_every_attack_is_in_the_threat_model() -> None:
    """But the programs' own test, which attacks nothing."""
    named = {file for row in CLAIMS for file, _ in REFERENCE.findall(row)}
    attacks = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "hostile").glob("test_*.py")}
    assert attacks - named == {"tests/hostile/test_lying_programs.py"}


@pytest.mark.parametrize("page", DETAILS)
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"(test_\w+\.py)::(test_\w+)", (FOLDER / page).read_text(encoding="utf-8")))
    assert len(named) > 20
    assert sorted(
        f"{file}::{test}"
        for file, test in named
        if not any(test in collected(path) for path in (ROOT / "tests").rglob(file))
    ) == []  # fmt: skip


def test_every_row_about_masking_names_a_test() -> None:
    text = (FOLDER / DETAILS[0]).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []
