# SPDX-License-Identifier: Apache-2.0
"""`medflare run` without a site file: hospitals that have what the job reads, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medflare.cli.demo_hospitals import DEMOS, demo_hospitals
from medflare.learners.registry import METHODS, task_of
from medflare.synthetic import follow_up

JOBS = Path(__file__).parents[3] / "jobs"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_hospitals_with_what_it_reads(method: str) -> None:
    assert task_of(method).reads in DEMOS


def test_patients_have_as_many_visits_as_the_job_goes_through_and_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, int]] = []

    def write(folder: Path, visits: int) -> None:
        written.append((folder, visits))
        folder.mkdir(parents=True)
        (folder / "site.yaml").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follow_up, "write_follow_up_demo", write)
    changes: dict[str, Any] = {"settings.visits": 3}
    for _ in range(2):
        assert demo_hospitals(JOBS / "fedtar", changes) == (
            Path("runs/visit-cohorts-3/site.yaml"),
            "hospital-4",
        )
    assert demo_hospitals(JOBS / "fedtar", {})[0] == Path("runs/visit-cohorts-4/site.yaml")
    assert written == [(Path("runs/visit-cohorts-3"), 3), (Path("runs/visit-cohorts-4"), 4)]
