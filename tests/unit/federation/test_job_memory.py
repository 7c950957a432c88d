# SPDX-License-Identifier: Apache-2.0
"""Which run a job is, as a site remembers it: bound by the first `prepare`, resumed by nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medflare.egress.failures import MessageError
from medflare.egress.job_memory import JobMemory

FIRST: dict[str, Any] = {
    "settings": "digest",
    "run_id": "run",
    "seed": 7,
    "roster": ["site-1", "site-2"],
    "submitter": "lead@hospital.org",
    "job": "fedmrg",
}


@pytest.fixture
def memory(tmp_path: Path) -> JobMemory:
    """What a site remembers of a run, as a later process reads it."""
    file = tmp_path / "job_memory.json"
    JobMemory(file).bind("prepare", **FIRST)
    return JobMemory(file)


@pytest.mark.parametrize("task", ["prepare", "fit", "finish"])
@pytest.mark.parametrize("resumes", [False, True])
def test_who_began_a_run_goes_on_with_it(memory: JobMemory, task: str, resumes: bool) -> None:
    memory.bind(task, **FIRST, resumes=resumes)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"submitter": "mallory@hospital.org"}, "Whoever began a run goes on with it"),
        ({"job": "fedtar"}, "Whoever began a run goes on with it"),
        ({"settings": "another"}, "other settings"),
        ({"run_id": "another"}, "run_id"),
        ({"seed": 8}, "seed"),
        ({"roster": ["site-1", "site-3"]}, "roster"),
    ],
)
def test_nobody_else_goes_on_with_it(memory: JobMemory, other: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        memory.bind("prepare", **FIRST | other, resumes=True)


def test_nothing_comes_before_prepare(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="came before 'prepare'"):
        JobMemory(tmp_path / "job_memory.json").bind("fit", **FIRST)
