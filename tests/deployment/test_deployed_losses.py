# SPDX-License-Identifier: Apache-2.0
"""What is lost in the middle of a round and what that costs: a worker, a site's job process, a whole site."""

from __future__ import annotations

from pathlib import Path

import deployed_jobs
import psutil
import pytest
from deployed import SITES, Federation, Finished

from medflare.wire.files import load_tensors

SLOW = {"steps": 8, "num_rounds": 3}
"""Long enough in a round to be killed in it."""


def training(federation: Federation, site: str, job_id: str, number: int) -> psutil.Process:
    """The worker of a site, in the middle of its training of a round."""
    worker = federation.worker(site)
    federation.wait_event(job_id, phase="round", round=number)
    federation.wait_training(site, job_id)
    return worker


def submitted(federation: Federation, folder: Path, **changes: object) -> str:
    return federation.submit(deployed_jobs.tiny_job(folder, "fed_medlora", **{**SLOW, **changes}))


@pytest.mark.fault("a worker is killed", phase="training, mTLS", result="misses one round by name")
@pytest.mark.faults
def test_a_killed_worker_costs_one_site_one_round(federation: Federation, tmp_path: Path) -> None:
    job_id = submitted(federation, tmp_path, min_responses=2)
    training(federation, "site-2", job_id, 1).kill()
    run = federation.finished(job_id, tmp_path / "out")
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed")
    everyone = list(SITES)
    assert [sorted(entry.accepted) for entry in run.record.rounds] == [
        everyone,
        ["site-1", "site-3"],
        everyone,
    ]
    assert "SIGKILL" in run.record.rounds[1].absent["site-2"]
    assert {item.site for item in run.record.evaluations} == set(SITES)


@pytest.mark.fault(
    "all processes of a site are killed", phase="training, mTLS", result="named; the others finish"
)
@pytest.mark.faults
def test_a_site_that_is_gone_is_named_and_the_others_finish(
    federation: Federation, gone_site: str, tmp_path: Path
) -> None:
    job_id = submitted(federation, tmp_path, min_responses=2, straggler_timeout=25)
    training(federation, gone_site, job_id, 1)
    federation.kill(gone_site)
    run = federation.finished(job_id, tmp_path / "out")
    assert run.record.status == "completed"
    assert [sorted(entry.accepted) for entry in run.record.rounds[1:]] == [["site-1", "site-2"]] * 2
    assert run.record.rounds[1].absent[gone_site] in ("disconnected", "no reply within 25 s of the quorum")
    assert "suspended" in run.record.rounds[2].absent[gone_site]
    assert adapter(run)


@pytest.mark.faults
def test_a_killed_job_process_ends_the_job_and_the_last_good_state_is_kept(
    federation: Federation, tmp_path: Path
) -> None:
    job_id = submitted(federation, tmp_path, min_responses=2)
    training(federation, "site-2", job_id, 1)
    federation.job_process("site-2").kill()
    run = federation.finished(job_id, tmp_path / "out")
    assert run.state.startswith("FINISHED:")
    assert run.state != "FINISHED:COMPLETED"
    assert run.record.status == "stopped"
    assert sorted(run.record.rounds[0].accepted) == list(SITES)
    assert adapter(run)


def adapter(run: Finished) -> dict[str, object]:
    """The final adapter of a run."""
    return dict(load_tensors(run.folder / run.record.artefacts["final"] / "adapter_model.safetensors")[0])
