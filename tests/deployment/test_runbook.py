# SPDX-License-Identifier: Apache-2.0
"""provisioning/RUNBOOK.md is executed from the first block to the last, each by the one who would type it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import deployed
import psutil
import pytest
from deployed import ADMIN, REPOSITORY, SITES
from deployed_programs import LONG, wait_until

from medflare.core.run_record import read_record

RUNBOOK = REPOSITORY / "provisioning" / "RUNBOOK.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```(\w+)\n(.*?)```", re.DOTALL)
SHELLS = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


@dataclass(frozen=True)
class Block:
    """One block of the runbook, as one person types it."""

    person: str
    language: str
    text: str
    line: int


def blocks() -> list[list[Block]]:
    """Every marked block in order; a hospital's is typed by each of the three, at the same time."""
    page = RUNBOOK.read_text(encoding="utf-8")
    out = []
    for found in BLOCK.finditer(page):
        who, language, text = found.groups()
        line = page[: found.start()].count("\n") + 1
        people = SITES if who == "hospital" else (who,)
        out.append([Block(person, language, text, line) for person in people])
    return out


@dataclass(frozen=True)
class Desk:
    """A folder for each person, and what they have set in their shells."""

    root: Path

    def environment(self, person: str) -> dict[str, str]:
        own = {
            "SERVER_HOST": "localhost",
            "PORT": os.environ["RUNBOOK_PORT"],
            "KITS": str(self.root / "kits"),
            "HANDOVER": str(self.root / "handover"),
            "ADMIN": ADMIN,
            "SITE": person,
            "JOBS": str(REPOSITORY / "jobs"),
            "VENV": str(self.root / "venv"),
        }
        env = deployed.environment() | own
        bare = deployed.bare_path(self.root / "bin")
        return env | ({"PATH": bare} if person in SITES else {})

    def do(self, block: Block) -> str:
        """Types a block; what it said. Programs it leaves in the background go on."""
        folder, log = self.root / block.person, self.root / f"{block.person}.log"
        command = [*SHELLS[block.language], block.text]
        with log.open("w+b") as said:
            done = subprocess.run(
                command,
                cwd=folder,
                env=self.environment(block.person),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=LONG,
                start_new_session=True,
            )
        text = log.read_text(errors="replace")
        assert done.returncode == 0, f"{RUNBOOK.name}:{block.line} as {block.person}:\n{text[-6000:]}"
        return text

    def processes(self) -> list[psutil.Process]:
        """Whatever runs from a folder below this one."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and any(str(self.root) in part for part in process.cmdline()):
                    found.append(process)
        return found


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("RUNBOOK_PORT", str(deployed.free_port()))
    for person in ("centre", "admin", "handover", *SITES):
        (tmp_path / person).mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path / "centre")
    shutil.copytree(REPOSITORY / "provisioning", tmp_path / "centre" / "provisioning")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    for name in (".runtime", ".installed"):
        (tmp_path / "venv" / name).touch()
    yield Desk(tmp_path)
    for process in Desk(tmp_path).processes():
        with contextlib.suppress(psutil.Error):
            process.kill()


def test_the_runbook_runs_from_the_first_block_to_the_last(desk: Desk) -> None:
    took = {}
    assert len(blocks()) > 12
    for same in blocks():
        started = time.monotonic()
        with ThreadPoolExecutor(len(same)) as people:
            list(people.map(desk.do, same))
        took[f"line {same[0].line}"] = round(time.monotonic() - started, 1)
    print("seconds:", took)
    results = desk.root / "admin" / "results"
    assert [read_record(path).status for path in results.glob("*/workspace/run.json")] == ["completed"] * 2
    wait_until("everything to end", lambda: not desk.processes(), LONG)
