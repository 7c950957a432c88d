# SPDX-License-Identifier: Apache-2.0
"""`medflare job` at a running federation over mTLS: the common path of an admin."""

from __future__ import annotations

import json
import time
from pathlib import Path

import deployed_jobs
import pytest
from deployed import ADMIN, Federation, Finished

from command_line import facts, medflare, refusal
from medflare.core.run_record import read_record


@pytest.fixture
def kit(federation: Federation) -> Path:
    return federation.kits / ADMIN


def test_a_job_is_submitted_with_changes_seen_running_and_ended(
    federation: Federation, kit: Path, tmp_path: Path
) -> None:
    folder = deployed_jobs.tiny_job(tmp_path / "job", "fed_medlora", num_rounds=4000, evaluate_every=0)
    number = facts("job", "submit", folder, "--kit", kit, "--set", "seed=5")["job"]
    federation.wait_event(number, phase="round", round=0)
    running = facts("job", "status", number, "--kit", kit)
    assert (running["job"], running["status"], running["submitter"]) == (number, "RUNNING", ADMIN)
    assert int(running["round"]) >= 0
    assert number in [row["job"] for row in facts("job", "status", "--kit", kit)]
    facts("job", "abort", number, "--kit", kit)
    assert federation.wait(number) == "FINISHED:ABORTED"


def test_a_job_for_more_sites_than_are_connected_says_what_it_waits_for(
    federation: Federation, kit: Path, tmp_path: Path
) -> None:
    folder = deployed_jobs.tiny_job(tmp_path / "job", "fed_medlora")
    submitted = medflare("job", "submit", folder, "--kit", kit, "--set", "min_responses=4", "--json")
    connected = "It begins when 4 sites are connected; now there are 3 (site-1, site-2, site-3)."
    assert connected in submitted.stderr
    number = json.loads(submitted.stdout)["job"]
    for _ in range(60):
        if waits := facts("job", "status", number, "--kit", kit).get("waits"):
            break
        time.sleep(1)
    assert waits == "connected sites (3) < min_sites (4)"
    facts("job", "abort", number, "--kit", kit)


def test_the_result_of_a_job_is_fetched_once_with_record_and_page(
    fedmrg_run: Finished, kit: Path, tmp_path: Path
) -> None:
    made = facts("job", "download", fedmrg_run.job_id, "--kit", kit, "--to", tmp_path)
    assert made["status"] == "completed"
    assert Path(made["paths"]["page"]).is_file()
    assert read_record(Path(made["paths"]["record"])).run_id == fedmrg_run.record.run_id
    assert "is there already" in refusal(
        2, "job", "download", fedmrg_run.job_id, "--kit", kit, "--to", tmp_path
    )
    log = facts("job", "logs", fedmrg_run.job_id, "--kit", kit, "--lines", 5)["logs"]["server"]
    assert 0 < len(log.splitlines()) <= 5


def test_a_job_that_is_not_there_and_a_job_that_cannot_run_are_named(
    fedmrg_run: Finished, kit: Path, tmp_path: Path
) -> None:
    unknown = refusal(5, "job", "status", "0" * 8, "--kit", kit)
    assert "nothing is known of job 00000000" in unknown
    assert "medflare job status" in unknown
    folder = deployed_jobs.tiny_job(tmp_path / "job", "fed_medlora")
    result = medflare("job", "submit", folder, "--kit", kit, "--set", "rule=kurm", "--json")
    assert result.exit_code == 2
    assert "krum" in json.loads(result.stdout)["error"]["text"]
