# SPDX-License-Identifier: Apache-2.0
"""One running federation for all tests of a process; what it said is shown with a test that fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deployed
import deployed_jobs
import pytest
from deployed import SERVER, SITES, Federation, Finished
from deployed_jobs import Simulated
from xdist.scheduler import LoadFileScheduling

ONE_FEDERATION = (
    "test_deployed_runs",
    "test_job_commands",
    "test_deployed_protections",
    "test_deployed_crashes",
)
"""Files whose tests compare with the same undisturbed runs, which one process makes once."""


class Scheduling(LoadFileScheduling):
    """A file's tests run in one process, and those of `ONE_FEDERATION` in the same."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "one federation" if Path(file).stem in ONE_FEDERATION else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; begin with those that take longest, the runbook and `ONE_FEDERATION`."""
    first = ("test_runbook", *ONE_FEDERATION)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.deployment)
    items.sort(key=lambda item: first.index(item.path.stem) if item.path.stem in first else len(first))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    federation = getattr(item, "funcargs", {}).get("federation")
    if report.failed and federation is not None:
        report.sections.append(("what the federation said", federation.logs()))


@pytest.fixture(scope="session")
def cohorts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies and notes of three hospitals; every report and note holds the canary's words."""
    folder = tmp_path_factory.mktemp("cohorts")
    deployed_jobs.write_cohorts(folder, SITES)
    return folder


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hardened kits of provisioning/project.yml."""
    return deployed.provision(tmp_path_factory.mktemp("federation") / "provisioned")


@pytest.fixture(scope="session")
def site_file(provisioned: Path, cohorts: Path, tiny_backbone: Path) -> Path:
    """The simulator's site.yaml of the same sites; each kit has its own block of it."""
    return deployed_jobs.write_site_files(provisioned, cohorts, SITES, tiny_backbone)


@pytest.fixture(scope="session")
def federation(provisioned: Path, site_file: Path) -> Iterator[Federation]:
    """Server and three sites, running."""
    running = Federation(provisioned)
    try:
        running.start(SERVER, *SITES)
        running.wait_ready(*SITES)
        yield running
    finally:
        running.stop()
        print("\nseconds:", {name: round(value, 1) for name, value in running.seconds.items()})


@pytest.fixture
def gone_site(federation: Federation) -> Iterator[str]:
    """A site that a test may kill; it is there again afterwards."""
    yield "site-3"
    if "site-3" not in federation.processes:
        federation.start("site-3")
    federation.wait_ready(*SITES)


@pytest.fixture(scope="session")
def simulated(site_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Simulated]:
    """Runs of the tiny jobs in the simulator, made when first asked for."""

    class Runs(dict[str, Simulated]):
        def __missing__(self, name: str) -> Simulated:
            workspace = tmp_path_factory.mktemp("simulated") / name
            self[name] = deployed_jobs.simulated(name, workspace, SITES, site_file)
            return self[name]

    return Runs()


@pytest.fixture(scope="session")
def fedmrg_run(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Tiny FedMRG, submitted and downloaded through the Python API."""
    folder = tmp_path_factory.mktemp("fedmrg")
    return federation.complete(deployed_jobs.tiny_job(folder, "fedmrg"), folder / "out")


@pytest.fixture(scope="session")
def fed_medlora_run(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Tiny Fed-MedLoRA, submitted, watched and downloaded with the `nvflare job` command."""
    folder = tmp_path_factory.mktemp("fed_medlora")
    job = deployed_jobs.tiny_job(folder, "fed_medlora")
    started = time.monotonic()
    job_id = federation.command("job", "submit", "-j", str(job))["job_id"]
    status = federation.command("job", "wait", job_id, "--timeout", "900")["status"]
    federation.seconds["job by command"] = time.monotonic() - started
    federation.command("job", "download", job_id, "-o", str(folder / "out"))
    return Finished(job_id, status, folder / "out" / job_id / "workspace")
