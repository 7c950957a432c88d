# SPDX-License-Identifier: Apache-2.0
"""Stands in for FLARE's simulator: `... <workspace> <how>` starts processes as it does and writes a record.

Like the simulator it has a child in its own group, which starts one in a session of its own, which starts a
worker in another. `how`: `obedient`, `deaf` (ignores SIGTERM) or `ends` (after the record, without a word).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def write_record(server: Path) -> None:
    """Write the record of a run whose second round is under way, and its events."""
    # here, so that the processes below the first one import none of it: seconds of each
    from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord
    from medflare.federation.server.run_state import LATEST
    from medflare.recipes.resume import WorkspaceState

    record = RunRecord(job="toy", method="toy", run_id="r1", started="2026-11-20T10:00:00Z", best_round=None)
    record.sites = dict.fromkeys(("site-1", "site-2"), SiteRecord(backbone="toy", fingerprint="x"))
    record.rounds = [RoundRecord(round=0, seconds=1.0), RoundRecord(round=1, seconds=0.0)]
    record.rounds[1].accepted = {"site-1": 5}
    record.write(server / "run.json")
    state = WorkspaceState(server.parents[1]).run / "state"
    state.mkdir(parents=True)
    (state / LATEST).write_text('{"folder": "round-0001"}')
    events = [
        {"time": 1.0, "phase": "started", "sites": ["site-1", "site-2"]},
        {"time": 2.0, "phase": "round", "round": 1, "rounds": 4, "sites": ["site-1", "site-2"]},
        {"time": 3.0, "phase": "update", "round": 1, "site": "site-1", "verdict": "accepted"},
    ]
    (server / "progress.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def main(workspace: Path, how: str, depth: int = 0) -> None:
    """Start what is below, note the process's number, write the record last, and sleep."""
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    workspace.mkdir(parents=True, exist_ok=True)
    if depth < 3:
        again = [sys.executable, __file__, str(workspace), how, str(depth + 1)]
        subprocess.Popen(again, start_new_session=depth > 0)
        while not (workspace / f"{depth + 1}.pid").exists():
            time.sleep(0.01)
    if depth == 0:
        (workspace / "server/simulate_job").mkdir(parents=True)
        write_record(workspace / "server/simulate_job")
    (workspace / f"{depth}.tmp").write_text(str(os.getpid()))
    (workspace / f"{depth}.tmp").rename(workspace / f"{depth}.pid")
    if depth == 0 and how == "ends":
        return
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
