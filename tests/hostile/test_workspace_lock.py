# SPDX-License-Identifier: Apache-2.0
"""Two runs never share a workspace: the second one would delete the first one's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord
from medflare.recipes import simulate
from medflare.recipes.workspace_lock import locked

HOLD = "import sys\nfrom pathlib import Path\nfrom medflare.recipes.workspace_lock import locked\n"
HOLD += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"


@pytest.mark.fault(
    "a second run in a busy workspace", phase="start", result="refused by name until the first ends or dies"
)
def test_a_second_run_is_refused_until_the_first_ends_or_dies(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "held"
    with pytest.raises(ConfigError, match=rf"process {child.pid}\), .* --workspace"), locked(tmp_path):
        pass
    child.kill()
    child.wait()
    with locked(tmp_path):
        pass


def test_a_run_in_a_busy_workspace_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "launch", lambda *args, **kwargs: pytest.fail("started"))
    (tmp_path / "local").mkdir()
    site = "{cohort: {format: manifest, root: .}}"
    (tmp_path / "local/site.yaml").write_text(f"sites: {{site-1: {site}, site-2: {site}, site-3: {site}}}")
    with locked(tmp_path), pytest.raises(ConfigError, match="another run is using this folder"):
        simulate.run_simulator(Path("jobs/fedmrg"), workspace=tmp_path)
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == ["site.yaml"]


def test_two_runs_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    first = simulate.new_workspace("job", tmp_path)
    first.mkdir()
    second = simulate.new_workspace("job", tmp_path)
    assert not second.exists()
    assert second != first


def a_run(workspace: Path, more: str = "server/simulate_job") -> Path:
    """Write what a finished run leaves, or only a file of somebody."""
    began = "2026-11-20T10:00:00Z"
    record = RunRecord(
        job="toy", method="toy", run_id="r", status="completed", started=began, best_round=None
    )
    record.write(workspace / more / "run.json")
    return workspace


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_is_replaced_only_where_it_was_said(tmp_path: Path, overwrite: bool) -> None:
    workspace = a_run(tmp_path / "ws")
    if overwrite:
        with simulate.held(workspace, overwrite):
            pass
        return
    message = r"a run of toy \(completed, began 2026-11-20 10:00 UTC\).*--overwrite.*--workspace"
    with pytest.raises(ConfigError, match=message), simulate.held(workspace, overwrite):
        pass
    assert [path.name for path in workspace.iterdir()] == ["server"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_no_run_made_is_never_given_to_the_simulator(tmp_path: Path, overwrite: bool) -> None:
    a_run(tmp_path, more="photographs")
    with (
        pytest.raises(ConfigError, match="is not empty and no run's folder: it holds photographs"),
        simulate.held(tmp_path, overwrite),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["photographs"]


def test_what_was_prepared_for_a_run_is_no_run(tmp_path: Path) -> None:
    for name in ("local/site.yaml", "startup/server_context.tenseal"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with simulate.held(tmp_path, overwrite=False):
        pass
