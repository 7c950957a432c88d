# SPDX-License-Identifier: Apache-2.0
"""Components of a kit's own resources.json: folders that move with it, exceptions without their text."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.job_def import RunStatus
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.security.logging import secure_format_exception, secure_format_traceback

from medflare.deployment.kit_components import SECURE_LOGGING, KitJobManager, KitStorage, SecureLogging
from medflare.recipes.allow_list import allowed_classes, class_path


def told(secret: str) -> str:
    """What FLARE would log and answer about an exception with this text."""
    try:
        raise ValueError(secret)
    except ValueError as error:
        return secure_format_exception(error) + secure_format_traceback()


def test_folders_are_those_of_the_kit_the_process_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVFL_JOB_STORE_ROOT", raising=False)
    for kit in (tmp_path / "here", tmp_path / "moved"):
        kit.mkdir()
        monkeypatch.chdir(kit)
        assert KitStorage("store/snapshots").root_dir == str(kit / "store/snapshots")
        assert KitJobManager().uri_root == str(kit / "store/jobs")
        assert sorted(path.name for path in (kit / "store").iterdir()) == ["jobs", "snapshots"]


def test_an_absolute_folder_stays_where_it_is(tmp_path: Path) -> None:
    assert KitStorage(str(tmp_path / "elsewhere")).root_dir == str(tmp_path / "elsewhere")


def test_flare_leaves_the_text_of_an_exception_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECURE_LOGGING, "false")
    assert "patient 4711" in told("patient 4711")
    SecureLogging()
    assert "patient 4711" not in told("patient 4711")
    assert "ValueError" in told("patient 4711")
    assert os.environ[SECURE_LOGGING] == "true"


def test_no_job_can_name_a_component_of_the_kit() -> None:
    assert not {class_path(kind) for kind in (SecureLogging, KitStorage, KitJobManager)} & set(
        allowed_classes()
    )


def test_a_server_that_starts_ends_the_jobs_that_a_killed_one_left_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE keeps them as RUNNING for ever: no abort, no delete, no download, and so no resume."""
    monkeypatch.delenv("NVFL_JOB_STORE_ROOT", raising=False)
    store = KitStorage(str(tmp_path / "files"))
    engine = create_autospec(ServerEngineSpec, instance=True)
    engine.get_component.return_value = store
    context: FLContext = FLContextManager(engine, "server", "", {}, {}).new_context()
    manager = KitJobManager(uri_root=str(tmp_path / "jobs"))
    before = {
        status: manager.create({"name": status.name}, b"zip", context)["job_id"]
        for status in (
            *(RunStatus.SUBMITTED, RunStatus.DISPATCHED, RunStatus.RUNNING),
            *(RunStatus.FINISHED_COMPLETED, RunStatus.FINISHED_ABORTED),
        )
    }
    for status, job in before.items():
        manager.set_status(job, status, context)
    manager.handle_event(EventType.CLIENT_HEARTBEAT_PROCESSED, context)
    after = {status: manager.get_job(job, context).meta["status"] for status, job in before.items()}
    assert after == {status: status.value for status in before}, "at the start and at no other time"
    manager.handle_event(EventType.SYSTEM_START, context)
    after = {status: manager.get_job(job, context).meta["status"] for status, job in before.items()}
    lost = dict.fromkeys((RunStatus.DISPATCHED, RunStatus.RUNNING), RunStatus.FINISHED_ABNORMAL.value)
    assert after == {status: status.value for status in before} | lost
