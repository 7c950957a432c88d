# SPDX-License-Identifier: Apache-2.0
"""Folders in which server and sites keep what must outlive a job: outside FLARE's folder of the job.

FLARE deletes that folder when a job is deployed again, and its simulator all folders of a workspace but
`local/` and `startup/`. In a kit, what must stay lies in the kit's own folder. `storage.json` in its `local/`
names another folder: another disk at a hospital, or, in a simulator, one beside the workspace.
"""

from __future__ import annotations

import re
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.wire.durable import read_json

FILE = "storage.json"
RUNS, LOCAL_STATE = "runs", "local_state"
"""Folders of runs: at the server, and at a site."""
SUBMISSIONS = "submissions"
"""A site's memory of the signed submissions that came to it."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""A job's id, by which a run is called: it becomes part of paths."""


def storage_folder(root: Path, party: str) -> Path:
    """Return the folder in which a party keeps what must outlive a job.

    Args:
        root: of its kit or workspace.
        party: "server", or the site's name; a simulator has one `storage.json` for all.

    Raises:
        ConfigError: `storage.json` names no absolute folder.
    """
    file = root / "local" / FILE
    if not file.is_file():
        return root
    try:
        folder = Path(read_json(file)["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        folder = Path()
    if not folder.is_absolute():
        raise ConfigError(
            f'{FILE}: expected {{"folder": "/an/absolute/path"}}, in which this machine keeps the state of '
            "runs. Mend the file, or remove it to keep them in the kit's own folder."
        )
    return folder / party


def run_name(job: str, resumes: str = "") -> str:
    """Return by what a run is called: FLARE's id of the first job of it.

    Args:
        resumes: the first job that `job` goes on with; empty where it begins a run.

    Raises:
        ConfigError: it is no plain name.
    """
    name = resumes or job
    if not NAME.fullmatch(name):
        raise ConfigError(f"a run is called {name[:40]!r}, expected letters, digits, '_' and '-'.")
    return name
