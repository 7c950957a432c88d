# SPDX-License-Identifier: Apache-2.0
"""The commands of the tutorials, executed as they stand on the page (tests/docs/runnable.py says how)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from runnable import DOCS, ROOT, execute_page, marked_blocks

from gguf_builder import write_gguf

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
ADDS_CODE = {"first-rule", "first-learner"}
"""Tutorials of code: the one of a rule changes the package and gets a copy of it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which commands find `jobs`, as in a clone of the repository."""
    made = tmp_path / "clone"
    made.mkdir()
    (made / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path / "models"))
    write_gguf(made / "SmolLM2-135M-Instruct.Q4_1.gguf")  # a small model of the same kind
    return made


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [p for p in TUTORIALS if p.stem not in ADDS_CODE], ids=lambda page: page.stem
)
def test_a_tutorial_runs(page: Path, folder: Path) -> None:
    assert execute_page(page, folder)


@pytest.mark.timeout(900)
def test_the_learner_of_the_tutorial_trains(folder: Path) -> None:
    printed = execute_page(DOCS / "tutorials" / "first-learner.md", folder)
    assert "smoothed_transformer" in printed
    first, second = (
        sum(map(float, re.findall(r"': ([\d.]+)", line)))
        for line in printed.splitlines()
        if line.startswith("round ")
    )
    assert 0 < second < first


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_what_a_tutorial_leaves_to_another_test_is_run_there(page: Path) -> None:
    for block in marked_blocks(page):
        if block.action == "run in":
            job = next(word for word in block.text.split() if word.startswith("jobs/")).removeprefix("jobs/")
            assert job in (ROOT / block.argument).read_text(encoding="utf-8"), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_is_marked(page: Path) -> None:
    """Only installing is not: a test cannot clone and install."""
    text = page.read_text(encoding="utf-8")
    commands = text.count("\n```bash\n") - ("## Install" in text)
    assert commands == sum(block.language == "bash" for block in marked_blocks(page))


@pytest.mark.timeout(900)
def test_the_tutorial_that_adds_a_rule_runs_in_a_copy_of_the_package(folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "custom", folder / "custom", ignore=ignored)
    shutil.copytree(
        ROOT / "tests" / "unit" / "aggregation", folder / "tests/unit/aggregation", ignore=ignored
    )
    for name in ("docs", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    printed = execute_page(DOCS / "tutorials" / "first-rule.md", folder)
    assert "passed" in printed or "[100%]" in printed
    assert "loss_mean" in printed
