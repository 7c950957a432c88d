# SPDX-License-Identifier: Apache-2.0
"""A run whose processes died goes on by itself, as often as its job says, and for no other reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from medflare.core.errors import ConfigError, RunError
from medflare.core.run_record import RunRecord
from medflare.recipes import simulate
from medflare.recipes.job_reader import read_job
from medflare.recipes.resume import WorkspaceState
from medflare.wire.process_file import FolderLock

JOB = Path(__file__).parents[3] / "jobs/fedmrg"
SITES = "sites:\n" + "".join(f"  site-{n}: {{cohort: {{format: manifest, root: '.'}}}}\n" for n in (1, 2, 3))
Status = Literal["running", "completed", "failed", "stopped", "paused"]


class Simulator:
    """Stands in for FLARE's: each start ends with the next of these states of the record, all but the last
    with an error."""

    def __init__(self, workspace: Path, ends: list[Status]) -> None:
        self.state, self.ends = WorkspaceState(workspace.resolve()), ends
        self.resumed: list[str] = []

    def launch(self, folder: Path, workspace: Path, *args: Any, **more: Any) -> None:
        self.resumed.append(read_job(folder).controller.get("resumes", ""))
        status = self.ends[len(self.resumed) - 1]
        record = RunRecord(job="j", method="m", run_id="r", started="2026", best_round=None, status=status)
        record.write(self.state.run / "run.json")
        if status != "completed":
            raise RunError("the simulator ended with exit code -9")


@pytest.mark.fault(
    "processes of `medflare run` die, max_resumptions={allowed}",
    phase="{ends}",
    result="goes on by itself: {completes}",
)
@pytest.mark.parametrize(
    ("ends", "allowed", "completes"),
    [
        (["running", "running", "completed"], 2, True),
        (["running", "running", "running"], 2, False),
        (["running"], 0, False),
        (["failed"], 2, False),
        (["stopped", "completed"], 1, True),
    ],
)
def test_a_run_goes_on_by_itself_only_if_its_processes_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[Status], allowed: int, completes: bool
) -> None:
    (tmp_path / "site.yaml").write_text(SITES)
    workspace, events = tmp_path / "ws", list[dict[str, Any]]()
    simulator = Simulator(workspace, ends)
    monkeypatch.setattr(simulate, "launch", simulator.launch)
    monkeypatch.setattr(simulate, "judge", lambda workspace: "completed")

    def start() -> Any:
        return simulate.run_simulator(
            JOB,
            workspace,
            site_file=tmp_path / "site.yaml",
            changes={"max_resumptions": allowed},
            on_event=events.append,
        )

    if completes:
        assert start() == "completed"
    else:
        with pytest.raises(RunError, match="exit code -9"):
            start()
    assert simulator.resumed == ["", *["simulate_job"] * (len(ends) - 1)]
    assert [e["left"] for e in events if e["phase"] == "resuming"] == list(range(allowed))[::-1][
        : len(ends) - 1
    ]


def test_a_run_that_dies_after_a_pause_was_asked_for_goes_on_only_when_it_is_told(tmp_path: Path) -> None:
    simulator = Simulator(tmp_path / "ws", ["running"])
    RunRecord(job="j", method="m", run_id="r", started="2026", best_round=None, status="running").write(
        simulator.state.run / "run.json"
    )
    lock = FolderLock(simulator.state.run)
    assert simulator.state.died()
    with pytest.raises(ConfigError, match="is not running"):
        simulator.state.pause()
    assert lock.acquire()
    simulator.state.pause()
    lock.release()
    assert not simulator.state.died()


def test_a_completed_run_is_not_started_again_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE's simulator wipes its workspace first, with the adapter and all scores."""
    (tmp_path / "site.yaml").write_text(SITES)
    workspace = tmp_path / "ws"
    simulator = Simulator(workspace, ["completed"])
    monkeypatch.setattr(simulate, "launch", simulator.launch)
    monkeypatch.setattr(simulate, "judge", lambda workspace: "judged")
    simulate.run_simulator(JOB, workspace, site_file=tmp_path / "site.yaml", unseen=["site-9"])
    assert simulate.resume_simulator(workspace)[0] == "judged"
    assert simulate.resume_simulator(workspace)[1].unseen == ["site-9"]
    assert simulator.resumed == [""]
