# SPDX-License-Identifier: Apache-2.0
"""Stands for FLARE's simulator: starts programs, writes what came of them, and ends with 7."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD = "fed_forked_child"


def child(*arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start a program as FLARE does."""
    command = [sys.executable, "-m", CHILD, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})


def of(pid: int) -> bool:
    """Whether a process runs."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def outcome() -> dict[str, Any]:
    """Start one program after the other."""
    facts = child("facts", "a b", ADDED="yes", PYTHONPATH="/somewhere:/else")
    asked = {"facts": json.loads(facts.communicate()[0]), "stub": facts.pid}
    codes = [child("exit", "5").wait(60), child("signal", str(int(signal.SIGTERM))).wait(60)]
    long = child("sleep")
    assert long.stdout is not None
    pid = int(long.stdout.readline())
    runs = of(pid)
    long.kill()
    until = time.monotonic() + 60
    while of(pid) and time.monotonic() < until:
        time.sleep(0.05)
    other = subprocess.run([sys.executable, "-c", "print(6)"], capture_output=True, text=True).stdout
    return asked | {"codes": codes, "runs": runs, "runs after": of(pid), "other": other.strip()}


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(outcome()))
    sys.stdin.read()
    sys.exit(7)
