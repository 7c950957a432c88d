# SPDX-License-Identifier: Apache-2.0
"""The mutants that `make mutation` lists: each with the lines that it changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import mutation

WRITTEN = '''
def x_share__mutmut_orig(part: int, whole: int) -> float:
    """Return a share."""
    return part / whole


def x_share__mutmut_1(part: int, whole: int) -> float:
    """Return a share."""
    return part * whole


class Rule:
    def xǁRuleǁname__mutmut_orig(self, short: bool = True) -> str:
        return "mean"

    def xǁRuleǁname__mutmut_2(self, short: bool = False) -> str:
        return "mean"
'''


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module below the copy as mutmut writes it: original and mutants side by side."""
    module = tmp_path / "mutants" / "src" / "medflare" / "toy.py"
    module.parent.mkdir(parents=True)
    module.write_text(WRITTEN, encoding="utf-8")
    monkeypatch.setattr(mutation, "COPY", tmp_path)
    mutation.functions_of.cache_clear()


def test_a_mutant_is_shown_with_the_lines_that_it_changes() -> None:
    assert mutation.difference("medflare.toy.x_share__mutmut_1").splitlines() == [
        "medflare.toy.x_share__mutmut_1",
        "-    return part / whole",
        "+    return part * whole",
    ]


def test_a_changed_default_of_a_method_is_shown() -> None:
    shown = mutation.difference("medflare.toy.xǁRuleǁname__mutmut_2").splitlines()[1:]
    assert [line[0] for line in shown] == ["-", "+"]
    assert "short: bool = True" in shown[0]
    assert "short: bool = False" in shown[1]


def test_a_mutant_that_the_module_does_not_hold_is_listed_by_its_name() -> None:
    assert mutation.difference("medflare.toy.x_gone__mutmut_3") == "medflare.toy.x_gone__mutmut_3"


def test_mutants_that_were_not_tried_are_not_said_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(SystemExit, match="mutmut ended with 1 before all mutants were tried"):
        mutation.run()
