# SPDX-License-Identifier: Apache-2.0
"""Workspaces whose path FLARE's simulator would split; tests/jobs runs whole jobs in one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from nvflare.private.fed.app.simulator import simulator_runner

from medflare.core.errors import ConfigError
from medflare.recipes import simulator_process
from medflare.recipes.forked_simulator import split_command
from medflare.worker import fork_server


@pytest.mark.parametrize(
    "path", ["/runs/one", "/my runs/x", "/nora's  run", '/a "b" c', "/a\\b", "/a -x --b/c"]
)
def test_values_of_options_stay_whole(path: str) -> None:
    command = f"/tmp/python -m a.module -o {path} --logging_config {path}/log.json --port 80 --task_name None"
    assert split_command(command, True) == [
        *("/tmp/python", "-m", "a.module", "-o", path, "--logging_config", f"{path}/log.json"),
        *("--port", "80", "--task_name", "None"),
    ]


def test_the_simulator_still_makes_its_command_as_expected() -> None:
    source = inspect.getsource(simulator_runner)
    assert source.count("shlex.") == 1
    assert "shlex.split(command, True)" in source


@pytest.mark.parametrize("name", ["my run", "nora's", "a\\b", 'a"b'])
def test_a_path_that_flare_would_split_is_refused_where_nothing_is_forked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "usable", lambda: False)
    with pytest.raises(ConfigError, match="cannot work in a folder whose path has a space, a quote"):
        simulator_process.launch(tmp_path / "job", tmp_path / name, ["site-1"], method="fedmrg")
    assert not list(tmp_path.iterdir())
