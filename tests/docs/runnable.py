# SPDX-License-Identifier: Apache-2.0
"""Read the blocks of a documentation page that an HTML comment marks, and execute them in a folder.

<!-- run -->                     execute the bash or python block below
<!-- run: --rounds 1 -->         the same, with these arguments after the block's last command
<!-- run prints: 0 problem(s) --> it must print these words; a warning, exit code 1, is the machine's affair
<!-- run in: tests/x/test_y.py --> not executed here: that test runs the same job
<!-- file: path -->              write the block to this file
<!-- patch -->                   apply the diff
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"<!-- (?P<action>run prints|run in|run|file|append|patch)(?:: (?P<argument>[^\n]*?))? -->\n"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LONGEST = 600


@dataclass(frozen=True)
class Block:
    """One marked block: what to do with it, the marker's argument, language, text and line of the page."""

    action: str
    argument: str
    language: str
    text: str
    line: int


def marked_blocks(page: Path) -> list[Block]:
    """Return the marked blocks of `page` in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["action"], m["argument"] or "", m["language"], m["text"], text[: m.start()].count("\n") + 1)
        for m in BLOCK.finditer(text)
    ]


def execute_page(page: Path, folder: Path) -> str:
    """Execute all marked blocks of `page` in `folder` and return what they printed.

    Raises:
        AssertionError: a command failed; the message has page, line and output.
    """
    return "".join(_execute(block, page, folder) for block in marked_blocks(page))


def _execute(block: Block, page: Path, folder: Path) -> str:
    if block.action == "run in":
        return ""
    if block.action == "file":
        path = folder / block.argument
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return ""
    if block.action == "append":
        with (folder / block.argument).open("a", encoding="utf-8") as file:
            file.write(block.text)
        return ""
    if block.action == "patch":
        return _run(["patch", "-p1", "--no-backup-if-mismatch"], block, page, folder, block.text)
    if block.action == "run prints":
        shown = _run(["bash", "-uo", "pipefail", "-c", block.text], block, page, folder, most=1)
        words = rf"(?<!\w){re.escape(block.argument)}(?!\w)"
        assert re.search(words, shown), f"{page.relative_to(ROOT)}:{block.line}\n{shown[-6000:]}"
        return shown
    text = block.text.rstrip("\n") + (f" {block.argument}" if block.argument else "")
    if block.language == "python":
        return _run([sys.executable, "-c", text], block, page, folder)
    return _run(["bash", "-euo", "pipefail", "-c", text], block, page, folder)


def _run(
    command: list[str], block: Block, page: Path, folder: Path, given: str = "", *, most: int = 0
) -> str:
    """Return what a command printed; its exit code is at `most` so much."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(folder),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode <= most, f"{page.relative_to(ROOT)}:{block.line}\n{done.stdout[-6000:]}"
    return done.stdout


def _folders_without_java(links: Path) -> list[str]:
    """Return the folders of PATH; the one that has Java becomes `links` to all its other programs.

    METEOR's program takes every process that scores reports seven processor seconds to start.
    """
    folders = []
    for name in os.environ["PATH"].split(os.pathsep):
        if (Path(name) / "java").exists():
            links.mkdir(exist_ok=True)
            for program in Path(name).iterdir():
                link = links / program.name
                if program.name != "java" and not link.is_symlink():
                    link.symlink_to(program)
            name = str(links)
        folders.append(name)
    return folders


def _environment(folder: Path) -> dict[str, str]:
    """Put `medflare` and `python` of this interpreter on PATH; use the package of `folder`, if it has one."""
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    command = programs / "medflare"
    if not command.exists():
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m medflare.cli.main "$@"\n')
        command.chmod(0o755)
    package = folder / "custom" if (folder / "custom").is_dir() else ROOT / "custom"
    path = (str(programs), str(Path(sys.executable).parent), *_folders_without_java(folder.parent / "bin"))
    return os.environ | {
        "PATH": os.pathsep.join(path),
        # Packages that a page installs go into `packages`, and not into the environment of the tests.
        "PYTHONPATH": os.pathsep.join((str(package), str(folder / "packages"))),
        "COLUMNS": "120",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
