# SPDX-License-Identifier: Apache-2.0
"""Runs the units (method, seed) of a study, each in a process of its own and none of them twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DONE = "done.json"


def unit_folder(out: Path, name: str, seed: str | int) -> Path:
    """Folder of a unit."""
    return out / f"{name}-{seed}"


def complete(out: Path, name: str, seeds: Sequence[str]) -> bool:
    """Return whether a method is done for all seeds; print those that are missing."""
    missing = [seed for seed in seeds if not (unit_folder(out, name, seed) / DONE).is_file()]
    if missing:
        print(f"{name}: not in the tables, missing for seed {', '.join(missing)}", flush=True)
    return not missing


def run_units(
    script: str, out: Path, units: Sequence[tuple[str, str]], options: Sequence[str], workers: int
) -> None:
    """Starts `script --out out --unit method:seed options` for every unit that is not done yet.

    A unit that fails is named with its log; the others go on.
    """

    def run(unit: tuple[str, str]) -> None:
        folder = unit_folder(out, *unit)
        if (folder / DONE).is_file():
            return
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("w") as log:
            command = [sys.executable, script, "--out", str(out), "--unit", ":".join(unit), *options]
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        print(
            f"{unit[0]} seed {unit[1]}: {'done' if code == 0 else f'failed, see {folder}/log.txt'}",
            flush=True,
        )

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, units))


def timed(folder: Path, work: Callable[[], None], **facts: object) -> None:
    """Does a unit's work and marks its folder as done."""
    started = time.monotonic()
    work()
    (folder / DONE).write_text(json.dumps({"seconds": time.monotonic() - started, **facts}))
