# SPDX-License-Identifier: Apache-2.0
"""A job that goes to a busy server, or over a slow line, is waited for longer than FLARE does."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.streamers import file_streamer
from nvflare.fuel.hci.client import api

from medflare.recipes.admin_session import SECONDS, wait_for_uploads


def test_each_part_of_a_job_has_as_long_as_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def streamed(**options: Any) -> tuple[str, dict[str, Any]]:
        asked.update(options)
        return ReturnCode.ERROR, {}

    @contextmanager
    def context() -> Any:
        yield None

    monkeypatch.setattr(file_streamer.FileStreamer, "stream_file", streamed)
    monkeypatch.setattr(api, "FileStreamer", file_streamer.FileStreamer)
    wait_for_uploads()
    admin = SimpleNamespace(new_context=context, logger=SimpleNamespace(error=lambda text: None))
    api.AdminAPI.upload_file(admin, str(tmp_path / "job.zip"), SimpleNamespace(close=lambda: "what to do"))
    assert asked["chunk_timeout"] == SECONDS > 5
    assert asked["file_name"] == str(tmp_path / "job.zip")
