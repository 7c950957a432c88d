# SPDX-License-Identifier: Apache-2.0
"""`medflare job` with a server that says what it likes; tests/deployment has a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import answer, facts, refusal
from medflare.recipes import admin_jobs

LISTED = {"job_id": "j1", "job_name": "fedmrg", "status": "RUNNING", "submit_time": "2026", "duration": "1"}


class LyingSession:
    """A session at a server that answers what a test puts in."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            value = self.answers[name]
            if isinstance(value, Exception):
                raise value
            return value

        return call


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> LyingSession:
    session = LyingSession()

    @contextmanager
    def opened(kit: Path) -> Iterator[LyingSession]:
        yield session

    monkeypatch.setattr(admin_jobs, "admin_session", opened)
    return session


KIT = ("--kit", "kits/admin")


def test_jobs_are_listed_as_json_and_as_a_table(server: LyingSession) -> None:
    server.answers["list_jobs"] = [LISTED]
    (row,) = facts("job", "status", *KIT)
    assert (row["job"], row["name"], row["status"]) == ("j1", "fedmrg", "RUNNING")
    assert "fedmrg" in answer("job", "status", *KIT)
    server.answers["list_jobs"] = []
    assert "no jobs" in answer("job", "status", *KIT)


def test_terminal_escapes_of_a_server_are_not_printed(server: LyingSession) -> None:
    server.answers["get_job_meta"] = LISTED | {"job_name": "\x1b[31mred\u202e"}
    server.answers["show_stats"] = {"server": {"Progress": {"phase": "\x1b]0;title\x07training"}}}
    shown = answer("job", "status", "j1", *KIT)
    assert "\x1b]" not in shown
    assert "\u202e" not in shown
    assert "training" in shown
    server.answers["get_job_logs"] = {"logs": {"server": "\x1b[2Jone\ntwo"}}
    assert answer("job", "logs", "j1", *KIT) == "one\ntwo\n"


@pytest.mark.parametrize("entry", [{}, {"job_id": 5}, {"job_id": "x" * 5000}, "j1"])
def test_a_job_that_the_server_describes_wrongly_is_an_error_of_one_sentence(
    server: LyingSession, entry: Any
) -> None:
    server.answers["list_jobs"] = [entry]
    assert "describes a job as medflare cannot read it" in refusal(5, "job", "status", *KIT)


def test_a_result_outside_the_folder_is_refused(server: LyingSession, tmp_path: Path) -> None:
    server.answers["download_job_result"] = str(tmp_path / "elsewhere")
    said = refusal(5, "job", "download", "j1", *KIT, "--to", tmp_path / "results")
    assert "outside" in said


def test_what_flare_raises_becomes_a_sentence_with_a_next_step(server: LyingSession) -> None:
    server.answers["abort_job"] = ValueError("no such job")
    said = refusal(5, "job", "abort", "j9", *KIT)
    assert "job j9 was not ended (ValueError: no such job)" in said
    assert "medflare job status" in said


def test_a_job_that_cannot_run_is_not_sent(server: LyingSession) -> None:
    server.answers["submit_job"] = AssertionError("sent")
    assert "min_responses" in refusal(2, "job", "submit", "jobs/fedmrg", *KIT, "--set", "min_responses=-1")
    server.answers["submit_job"] = "j2"
    assert facts("job", "submit", "jobs/fedmrg", *KIT, "--rounds", 2, "--canary") == {"job": "j2"}


def test_a_folder_that_is_no_kit_is_named(tmp_path: Path) -> None:
    assert "is no admin's startup kit" in refusal(2, "job", "status", "--kit", tmp_path)
