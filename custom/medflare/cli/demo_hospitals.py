# SPDX-License-Identifier: Apache-2.0
"""The synthetic hospitals that `medflare run` takes where it is given no site file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RUNS = Path("runs")


def demo_hospitals(
    job_folder: Path, changes: Mapping[str, Any], on_event: Callable[[dict[str, Any]], None]
) -> tuple[Path, str]:
    """Return (site file, unseen hospital) of synthetic hospitals for a job, which are written once.

    Args:
        changes: to the job, as `overrides.override` takes them.
        on_event: told before they are written.
    """
    from medflare.learners.registry import get_method
    from medflare.recipes.job_reader import read_job
    from medflare.recipes.overrides import override
    from medflare.synthetic.demo_cohorts import DEMO_COHORTS

    job = override(read_job(job_folder), changes)
    method = get_method(job.method)
    visits = int(method.resolve(job.settings).visits) if method.task == "visits" else 1
    demo = DEMO_COHORTS[method.task](visits)
    folder = RUNS / demo.folder
    if not (folder / "site.yaml").is_file():
        reason = f"{demo.participants} synthetic hospitals and an unseen one to {folder}"
        on_event({"time": time.time(), "phase": "writing", "reason": reason})
        demo.write(folder)
    return folder / "site.yaml", demo.unseen
