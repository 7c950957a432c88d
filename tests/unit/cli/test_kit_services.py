# SPDX-License-Identifier: Apache-2.0
"""`medflare kits service`: the unit starts a kit, puts a crash in order first, and quotes what it names."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import answer, refusal


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A site's kit in a folder with a name that needs quotes."""
    folder = tmp_path / "site 1 50%"
    (folder / "startup").mkdir(parents=True)
    (folder / "startup/sub_start.sh").write_text("#!/bin/bash\n")
    return folder


def read(text: str) -> configparser.ConfigParser:
    """The unit, whose keys are case-sensitive."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    return unit


def test_the_unit_reconciles_and_starts_the_kit_again_and_again(kit: Path, tmp_path: Path) -> None:
    file = tmp_path / "medflare.service"
    answer("kits", "service", kit, "--user", "med-flare", "--out", file)
    service = read(file.read_text())["Service"]
    start, before = shlex.split(service["ExecStart"]), shlex.split(service["ExecStartPre"].removeprefix("-"))
    named = str(kit.resolve()).replace("%", "%%")
    assert start == ["/bin/bash", f"{named}/startup/sub_start.sh", "--once"]
    assert before[1:] == ["runs", "reconcile", named]
    assert service["WorkingDirectory"] == named
    assert (service["Restart"], service["User"], service["KillMode"]) == (
        "always",
        "med-flare",
        "control-group",
    )
    assert answer("kits", "service", kit, "--user", "med-flare") == file.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_systemd_reads_the_unit(kit: Path, tmp_path: Path) -> None:
    file = tmp_path / "medflare.service"
    answer("kits", "service", kit, "--out", file)
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
    assert "Unknown" not in done.stderr + done.stdout


def test_what_cannot_be_started_is_refused(kit: Path, tmp_path: Path) -> None:
    assert "holds no startup/sub_start.sh" in refusal(2, "kits", "service", tmp_path)
    assert "expected letters" in refusal(2, "kits", "service", kit, "--user", "root; rm -rf /")
    strange = kit.rename(tmp_path / "a\nb")
    assert "no unit can hold" in refusal(2, "kits", "service", strange)
