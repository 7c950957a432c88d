# SPDX-License-Identifier: Apache-2.0
"""The example commits of the how-to pages, applied to a copy of the package and tested there."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
from runnable import DOCS, ROOT, execute_page

RULE = (DOCS / "how-to" / "add-a-rule.md").read_text(encoding="utf-8")
TASK = (DOCS / "how-to" / "add-a-task.md").read_text(encoding="utf-8")
MOST_LINES_OF_A_RULE = 40
MOST_FILES_OF_A_TASK = 6


@pytest.mark.timeout(600)
def test_the_example_task_works_in_a_copy_of_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "custom", folder / "custom", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "unit" / "tasks").mkdir(parents=True)
    for name in ("pyproject.toml", "jobs"):
        (folder / name).symlink_to(ROOT / name)
    assert "letter_writing" in execute_page(DOCS / "how-to" / "add-a-task.md", folder)


def test_the_example_task_needs_at_most_six_files() -> None:
    changed = set(re.findall(r"^\+\+\+ b/(\S+)", TASK, re.MULTILINE))
    changed |= set(re.findall(r"<!-- append: (\S+) -->", TASK))
    assert 4 <= len(changed) <= MOST_FILES_OF_A_TASK


def test_the_example_rule_is_short_and_has_one_row() -> None:
    code = re.search(r"```python\n(# SPDX.*?)```", RULE, re.DOTALL)
    assert code
    ast.parse(code[1])
    assert len(code[1].splitlines()) <= MOST_LINES_OF_A_RULE
    assert RULE.count("Case(make=rule(") == 1
