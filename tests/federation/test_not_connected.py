# SPDX-License-Identifier: Apache-2.0
"""A site that was not connected when a job was submitted is named, with the reason, in record and events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fed_harness import SITES, Federation, completed, use_toy_sites
from nvflare.apis.client import Client

from medflare.deployment.kit_components import KitJobManager
from medflare.federation.engine import FLContextKey, SimpleJobDefManager
from medflare.federation.server.deployment_report import (
    WHAT_TO_DO,
    read_report,
    sites_without_the_job,
    write_report,
)

AWAY = "site-9"
REASON = "not connected at submission"


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Federation]:
    """Makes a federation of toy sites below the test's folder."""
    use_toy_sites(monkeypatch)
    return lambda **options: Federation(root=tmp_path, **options)


def events(run: Federation, phase: str) -> list[dict[str, Any]]:
    lines = (run.folder / "progress.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["phase"] == phase]


def test_a_named_site_that_is_away_is_absent_in_every_round(federation: Callable[..., Federation]) -> None:
    run = federation(controller={"sites": [*SITES, AWAY], "min_responses": 3})
    record = completed(run)
    assert [set(entry.accepted) for entry in record.rounds] == [set(SITES)] * 2
    assert all(entry.absent[AWAY].startswith(REASON) for entry in record.rounds)
    assert events(run, "started")[0]["sites"] == list(SITES)
    (excluded,) = events(run, "excluded")
    assert excluded["site"] == AWAY
    assert excluded["reason"].startswith(REASON)


def test_a_run_that_needs_everybody_ends_at_once_and_says_who_is_away(
    federation: Callable[..., Federation],
) -> None:
    record = federation(controller={"sites": [*SITES, AWAY], "min_responses": 4}).run()
    assert record.status == "failed"
    assert f"{AWAY}: {REASON}" in record.reason
    assert record.reason.startswith("prepare: ")


def test_a_job_for_whoever_is_connected_says_who_takes_part(federation: Callable[..., Federation]) -> None:
    run = federation()
    completed(run)
    assert events(run, "started")[0]["sites"] == list(SITES)
    assert not events(run, "excluded")


# ---- FLARE did not give a connected site the job -----------------------------------------------------------

DETAIL = ["server: OK", "site-1: OK", f"{AWAY}: job signature \x1b[2Jverification failed"]
CHECKED = {
    "site-1": (True, "token"),
    "site-8": (False, "refused by this site's site.yaml: policy.submitters"),
}
CLIENTS = ["site-1", "site-8", AWAY]


def test_who_has_not_the_job_is_known_from_what_flare_found() -> None:
    reasons = sites_without_the_job(DETAIL, CHECKED, CLIENTS)
    assert sorted(reasons) == ["site-8", AWAY]
    assert reasons["site-8"].startswith("it did not take the job: refused by this site's site.yaml")
    assert reasons[AWAY].startswith(
        "FLARE could not deploy the job to it: job signature verification failed."
    )
    assert all(reason.endswith(WHAT_TO_DO) for reason in reasons.values())


def test_where_all_have_the_job_nobody_is_named() -> None:
    assert sites_without_the_job(["server: OK", "site-1: OK"], {"site-1": (True, "")}, CLIENTS) == {}


@pytest.mark.fault("FLARE did not give a site the job", phase="deployment", result="named with what to do")
@pytest.mark.parametrize("named", [True, False])
def test_a_site_that_was_not_given_the_job_is_named_with_what_to_do(
    federation: Callable[..., Federation], named: bool
) -> None:
    run = federation(controller={"sites": [*SITES, AWAY], "min_responses": 3} if named else {})
    write_report(run.folder, sites_without_the_job(DETAIL, {}, CLIENTS))
    record = completed(run)
    assert "could not deploy the job" in record.preparation["without_the_job"][AWAY]
    assert [event["site"] for event in events(run, "excluded")] == [AWAY]
    reasons = [entry.absent.get(AWAY, "") for entry in record.rounds]
    assert all(("could not deploy the job" in reason) == named for reason in reasons)


class Server:
    """FLARE's parent process at the server, as far as its job manager asks."""

    def __init__(self, root: Path, checked: dict[str, Any]) -> None:
        self.root = root
        self.props = {FLContextKey.WORKSPACE_OBJECT: self, FLContextKey.RESOURCE_CHECK_RESULT: checked}

    def get_engine(self) -> Server:
        return self

    def get_clients(self) -> list[Client]:
        return [Client(name, token=name) for name in CLIENTS]

    def get_run_dir(self, job: str) -> str:
        return str(self.root / job)

    def get_prop(self, name: str) -> Any:
        return self.props.get(name)


def test_the_kits_job_manager_tells_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(SimpleJobDefManager, "update_meta", lambda self, *args: kept.append(args))
    manager, server = KitJobManager(str(tmp_path / "jobs")), Server(tmp_path, CHECKED)
    manager.update_meta("job", {"status": "RUNNING"}, server)
    assert read_report(tmp_path / "job") == {}
    manager.update_meta("job", {"job_deploy_detail": DETAIL}, server)
    assert sorted(read_report(tmp_path / "job")) == ["site-8", AWAY]
    assert len(kept) == 2
