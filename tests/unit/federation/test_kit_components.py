# SPDX-License-Identifier: Apache-2.0
"""Components of a kit's own resources.json: folders that move with it, exceptions without their text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
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
