# SPDX-License-Identifier: Apache-2.0
"""Jobs and people that a federation refuses, each with the reason where somebody looks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import deployed_jobs
import pytest
import yaml
from deployed import LEAD, SITES, Federation
from deployed_programs import LONG, wait_until
from nvflare.fuel.flare_api.api_spec import AuthorizationError

from medflare.recipes.job import CLIENT_CONFIG
from medflare.wire.durable import write_json

MEMBER, ORG_ADMIN = "member@hospital-c.org", "orgadmin@hospital-b.org"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return deployed_jobs.tiny_job(tmp_path, "fed_medlora", worker="thread")


def test_a_class_that_is_not_listed_is_refused_at_the_site_and_never_made(
    federation: Federation, job: Path, tmp_path: Path
) -> None:
    content = json.loads((job / CLIENT_CONFIG).read_text())
    args = {"args": ["touch", str(tmp_path / "made")]}
    content["components"].append({"id": "extra", "path": "subprocess.Popen", "args": args})
    write_json(job / CLIENT_CONFIG, content)
    job_id = federation.submit(job)
    assert federation.wait(job_id) == "FINISHED:ABNORMAL"
    # The first site that refuses ends the job, and on a slow machine before another has read it.
    assert any("ComponentNotAuthorized" in federation.log(site) for site in SITES)
    assert not (tmp_path / "made").exists()


def test_a_job_that_brings_code_is_deployed_nowhere(federation: Federation, job: Path) -> None:
    code = job / "app" / "custom" / "borne.py"
    code.parent.mkdir()
    code.write_text("print('from a job')\n")
    job_id = federation.submit(job)
    assert federation.wait(job_id) == "FINISHED:FAILED_TO_RUN"
    with federation.session() as session:

        def is_told() -> bool:  # FLARE writes the reason after the state
            return "BYOC not permitted" in json.dumps(session.get_job_meta(job_id))

        wait_until("the reason in the job's record", is_told, LONG)


@pytest.fixture
def only_fedmrg(federation: Federation) -> Iterator[Path]:
    """site-2 admits no other job than FedMRG for a while."""
    path = federation.kits / "site-2" / "local" / "site.yaml"
    before = path.read_text()
    path.write_text(yaml.safe_dump({**yaml.safe_load(before), "policy": {"jobs": ["fedmrg*"]}}))
    yield path
    path.write_text(before)


def test_a_job_that_a_site_does_not_admit_never_starts_and_the_admin_reads_why(
    federation: Federation, job: Path, only_fedmrg: Path
) -> None:
    job_id = federation.submit(job)
    with federation.session() as session:

        def told() -> str:
            return " ".join(session.get_job_meta(job_id).get("schedule_history", []))

        why = wait_until("the scheduler's word", told, LONG)
        session.abort_job(job_id)
    assert "policy.jobs" in why
    assert "site.yaml" in why
    assert not federation.run_folder("site-2", job_id).exists()


@pytest.mark.parametrize("user", [MEMBER, ORG_ADMIN])
def test_who_has_no_right_to_submit_is_told(federation: Federation, job: Path, user: str) -> None:
    with pytest.raises(AuthorizationError, match="submit_job"):
        federation.submit(job, user)


def submitted_at_the_console(federation: Federation, job: Path) -> str:
    """FLARE's id of a job. Its console gives each part of a job five seconds, and loses it on a busy machine;
    who sits there types the line again."""
    for _ in range(3):
        printed = federation.console(f"submit_job {job}")
        if said := re.search(r"Submitted job: ([0-9a-f-]{36})", printed):
            return said.group(1)
    raise AssertionError(printed)


def test_only_who_may_aborts_a_job_and_the_record_says_so(federation: Federation, tmp_path: Path) -> None:
    """The admin submits and aborts at the interactive console; a lead aborts own jobs, a member none."""
    job = deployed_jobs.tiny_job(tmp_path, "fed_medlora", num_rounds=400, worker="thread")
    job_id = submitted_at_the_console(federation, job)
    for user in (LEAD, MEMBER):
        with federation.session(user) as session, pytest.raises(AuthorizationError, match="abort_job"):
            session.abort_job(job_id)
    federation.wait_event(job_id, phase="round done", round=0)
    assert job_id in federation.console("list_jobs", f"abort_job {job_id}", "y")
    run = federation.finished(job_id, tmp_path / "out")
    assert run.state == "FINISHED:ABORTED"
    assert (run.record.status, run.record.reason) == ("stopped", "the job was aborted.")
    assert (run.folder / run.record.artefacts["final"] / "adapter_model.safetensors").is_file()
