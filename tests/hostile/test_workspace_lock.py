# SPDX-License-Identifier: Apache-2.0
"""Two runs never share a workspace: the second one would delete the first one's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from medflare.core.errors import ConfigError
from medflare.recipes import simulate
from medflare.recipes.workspace_lock import locked

HOLD = "import sys\nfrom pathlib import Path\nfrom medflare.recipes.workspace_lock import locked\n"
HOLD += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"


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
    with locked(tmp_path), pytest.raises(ConfigError, match="another run is using this folder"):
        simulate.run_simulator(Path("jobs/fedmrg"), workspace=tmp_path)
    assert [path.name for path in (tmp_path / "local").iterdir()] == ["run.lock"]


def test_two_runs_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    first = simulate.new_workspace("job", tmp_path)
    first.mkdir()
    second = simulate.new_workspace("job", tmp_path)
    assert not second.exists()
    assert second != first
