# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/security.md: every statement names the test that shows it, and the test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"(test_\w+\.py)::(test_\w+)", PAGE)))
MASKING = PAGE.split("## Secure aggregation by masking")[1].split("\n## ")[0].split("### What it costs")[0]


def functions_in(file: str) -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob(file)]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "test"), NAMED, ids="::".join)
def test_a_named_test_exists(file: str, test: str) -> None:
    assert test in functions_in(file)


def test_every_row_about_masking_names_a_test() -> None:
    rows = [line for line in MASKING.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []
