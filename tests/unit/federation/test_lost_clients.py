# SPDX-License-Identifier: Apache-2.0
"""A simulator that loses clients as it starts is started again: a script stands in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from medflare.core.errors import RunError
from medflare.recipes import simulator_process

SIMULATOR = """#!/bin/sh
echo start >> {count}
starts=$(wc -l < {count})
if [ "$starts" -le {bad} ]; then
  echo "ERROR - Communication error with client site-2: [Errno 104] Connection reset by peer"
  sleep 60
fi
mkdir -p {server}
echo '{{"phase": "round"}}' > {server}/progress.jsonl
sleep 1
echo "Communication error with client site-1: it ended on purpose"
"""


def launched(folder: Path, bad: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Starts, and phases that were told; the first `bad` starts lose a client."""
    workspace, count, program = folder / "ws", folder / "count", folder / "simulator"
    workspace.mkdir()
    script = SIMULATOR.format(count=count, bad=bad, server=workspace / simulator_process.SERVER_FOLDER)
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(simulator_process, "simulator_command", lambda *others: [str(program)])
    phases: list[str] = []
    try:
        simulator_process.launch(
            folder, workspace, ["site-1"], on_event=lambda event: phases.append(event["phase"]), timeout=30
        )
    finally:
        starts = len(count.read_text().splitlines())
    return starts, phases


def test_it_is_started_again_and_its_end_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(tmp_path, 1, monkeypatch) == (2, ["round"])


def test_a_client_that_never_listened_is_a_loss_too(tmp_path: Path) -> None:
    log = tmp_path / "ws.log"
    log.write_text(
        "ERROR - run_client_thread error: RuntimeError: Failed to create connection to the child process"
    )
    assert simulator_process.lost_clients(log) == ["a client"]
    log.write_text("INFO - all is well")
    assert simulator_process.lost_clients(log) == []


def test_after_three_starts_the_lost_clients_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"lost site-2 as it started, 3 times.*ws\.log"):
        launched(tmp_path, 9, monkeypatch)
    assert len((tmp_path / "count").read_text().splitlines()) == simulator_process.STARTS
