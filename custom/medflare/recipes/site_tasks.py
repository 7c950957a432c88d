# SPDX-License-Identifier: Apache-2.0
"""The tasks that the sites of a simulator's workspace are running, from the files of their workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medflare.worker.progress_file import TaskProgress, read_progress

WORKER = Path("simulate_job/worker")
"""Folder of a site's worker below the site's own folder."""


def running_tasks(workspace: Path, sites: Iterable[str]) -> dict[str, TaskProgress]:
    """Return site -> its running task, of those that run one."""
    tasks = {site: read_progress(workspace / site / WORKER) for site in sites}
    return {site: task for site, task in tasks.items() if task is not None}
