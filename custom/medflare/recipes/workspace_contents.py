# SPDX-License-Identifier: Apache-2.0
"""Contents of a workspace before a run: FLARE's simulator deletes everything in it but two folders."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.recipes.old_runs import stored_run
from medflare.recipes.simulator_process import SERVER_FOLDER

KEPT = ("local", "startup")
"""Folders that the simulator leaves alone."""


def require_free(workspace: Path, overwrite: bool) -> None:
    """Refuse a workspace in which a run would delete something.

    Args:
        overwrite: whether a run that lies there may go. Files that no run made may not even then.

    Raises:
        ConfigError: what lies there, and the choices.
    """
    if not workspace.is_dir():
        return
    others = sorted(path.name for path in workspace.iterdir() if path.name not in KEPT)
    if not others:
        return
    if not (workspace / SERVER_FOLDER).is_dir():
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ConfigError(
            f"{workspace}: is not empty and no run's folder: it holds {', '.join(others[:3])}{more}, which "
            "the simulator would delete. Name another folder with --workspace, or delete them yourself."
        )
    if not overwrite:
        raise ConfigError(
            f"{workspace}: holds {_run(workspace)}, which the simulator would delete. Go on with "
            "it with --resume, replace it with --overwrite, or name another folder with --workspace."
        )


def _run(workspace: Path) -> str:
    """Return `a run of fedmrg (completed, began 2026-11-20 10:00 UTC)`."""
    run = stored_run(workspace)
    if run is None:
        return "a run without a record"
    began = datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"a run{f' of {run.job}' if run.job else ''} ({run.state}, began {began})"
