# SPDX-License-Identifier: Apache-2.0
"""The tasks that the sites of a simulator's workspace are running, and what their models wrote last, from the
files of their workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medflare.core.sample_drafts import SampleDrafts
from medflare.worker.draft_file import read_drafts
from medflare.worker.progress_file import TaskProgress, read_progress

WORKER = Path("simulate_job/worker")
"""Folder of a site's worker below the site's own folder."""


def running_tasks(workspace: Path, sites: Iterable[str]) -> dict[str, TaskProgress]:
    """Return site -> its running task, of those that run one."""
    tasks = {site: read_progress(workspace / site / WORKER) for site in sites}
    return {site: task for site, task in tasks.items() if task is not None}


def newest_drafts(workspace: Path, sites: Iterable[str]) -> dict[str, SampleDrafts]:
    """Return site -> what its model wrote in the last validation, of those that wrote something."""
    drafts = {site: read_drafts(workspace / site / WORKER) for site in sites}
    return {site: written for site, written in drafts.items() if written is not None}
