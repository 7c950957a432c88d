# SPDX-License-Identifier: Apache-2.0
"""`medflare run` without a site file: hospitals that have what the job reads, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medflare.cli.demo_hospitals import demo_hospitals
from medflare.synthetic import follow_up
from medflare.synthetic.demo_cohorts import DEMO_COHORTS
from medflare.tasks import TASKS

JOBS = Path(__file__).parents[3] / "jobs"


def test_every_task_has_hospitals() -> None:
    assert set(DEMO_COHORTS) == set(TASKS)


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
    told: list[dict[str, Any]] = []
    for _ in range(2):
        assert demo_hospitals(JOBS / "fedtar", changes, told.append) == (
            Path("runs/visit-cohorts-3/site.yaml"),
            "hospital-4",
        )
    assert demo_hospitals(JOBS / "fedtar", {}, told.append)[0] == Path("runs/visit-cohorts-4/site.yaml")
    assert [event["phase"] for event in told] == ["writing", "writing"]
    assert written == [(Path("runs/visit-cohorts-3"), 3), (Path("runs/visit-cohorts-4"), 4)]
