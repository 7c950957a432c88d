# SPDX-License-Identifier: Apache-2.0
"""`medflare job` with a server that says what it likes; tests/deployment has a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import (
    InternalError,
    JobNotFound,
    JobNotRunning,
    NoConnection,
    NoReply,
    SessionClosed,
)

from command_line import answer, facts, medflare, refusal
from medflare.core.errors import RunError
from medflare.core.run_record import RunRecord
from medflare.recipes import admin_jobs, admin_runs, admin_session
from medflare.recipes.job import SERVER_CONFIG
from medflare.wire.durable import write_json

LISTED = {"job_id": "j1", "job_name": "fedmrg", "status": "RUNNING", "submit_time": "2026", "duration": "1"}


class InTurn(list[Any]):
    """Answers of which each is given once, and the last for ever."""


class LyingSession:
    """A session at a server that answers what a test puts in."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            value = self.answers[name]
            if isinstance(value, InTurn):
                value = value.pop(0) if len(value) > 1 else value[0]
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

    monkeypatch.setattr(admin_session, "admin_session", opened)
    for module in (admin_jobs, admin_runs):
        monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(admin_jobs, "SECONDS_OF_A_MISS", 0.0)
    return session


KIT = ("--kit", "kits/admin")
RUNNING, ENDED = {"job_id": "j1", "status": "RUNNING"}, {"job_id": "j1", "status": "FINISHED:COMPLETED"}


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


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("stopped", "the run is not complete: stopped. an admin ended it"),
        ("running", "the run is not complete: its processes died."),
        ("completed", ""),
    ],
)
def test_a_downloaded_run_says_how_it_ended(
    server: LyingSession, tmp_path: Path, status: Any, words: str
) -> None:
    folder = tmp_path / "results" / "j2" / "workspace"
    folder.mkdir(parents=True)
    reason = "an admin\x1b[2J ended it" if status == "stopped" else ""
    RunRecord(job="fedmrg", method="fedmrg", run_id="r", started="now", status=status, reason=reason).write(
        folder / "run.json"
    )
    server.answers["download_job_result"] = str(folder.parent)
    shown = answer("job", "download", "j1", *KIT, "--to", tmp_path / "results", "--no-page")
    assert (words in shown) if words else ("not complete" not in shown)
    assert "\x1b[2J" not in shown


def test_what_flare_raises_becomes_a_sentence_with_a_next_step(server: LyingSession) -> None:
    server.answers["abort_job"] = ValueError("no such job")
    said = refusal(5, "job", "abort", "j9", *KIT)
    assert "job j9 was not ended (ValueError: no such job)" in said
    assert "medflare job status" in said


def test_a_job_that_cannot_run_is_not_sent(server: LyingSession, tmp_path: Path) -> None:
    kit = ("--kit", tmp_path)  # it remembers what it submits
    server.answers["submit_job"] = AssertionError("sent")
    assert "min_responses" in refusal(2, "job", "submit", "jobs/fedmrg", *kit, "--set", "min_responses=-1")
    server.answers["submit_job"] = "j2"
    assert facts("job", "submit", "jobs/fedmrg", *kit, "--rounds", 2, "--canary") == {"job": "j2"}


def sites(*names: str) -> Any:
    """Return what a server says of itself while sites of these names are connected."""
    return SimpleNamespace(client_info=[SimpleNamespace(name=name) for name in names])


@pytest.mark.parametrize(
    ("there", "changes", "said"),
    [
        (
            sites("site-2", "site-1"),
            (),
            "It begins when 3 sites are connected; now there are 2 (site-1, site-2).",
        ),
        (sites(), (), "now there are 0. `--set min_responses=N`"),
        (sites("site-1", "site-2"), ("--set", "min_responses=2"), ""),
        (sites("site-1", "site-2", "site-3", "site-4"), (), ""),
        (sites("one\x1b[2J", "two"), (), "now there are 2 (one"),
        (NoReply(""), (), ""),
        ("no sites", (), ""),
    ],
)
def test_a_submitted_job_that_has_to_wait_for_sites_says_so(
    server: LyingSession, tmp_path: Path, there: Any, changes: tuple[str, ...], said: str
) -> None:
    server.answers |= {"submit_job": "j2", "get_system_info": there}
    submitted = medflare("job", "submit", "jobs/fedmrg", "--kit", tmp_path, *changes)
    assert (submitted.exit_code, submitted.stdout) == (0, "submitted as job j2\n")
    assert said in submitted.stderr
    assert bool(submitted.stderr) == bool(said)
    assert "\x1b" not in submitted.stderr


TRIES = [
    "2026-11-29 17:25:27: connected sites (1) < min_sites (3)",
    "2026-11-29 17:25:37: connected sites (2) < min_sites (3)",
]
WAITING = {"job_id": "j1", "status": "SUBMITTED", "schedule_history": TRIES}


def test_a_job_that_waits_for_sites_says_for_what(server: LyingSession) -> None:
    server.answers["get_job_meta"] = WAITING
    assert facts("job", "status", "j1", *KIT)["waits"] == "connected sites (2) < min_sites (3)"
    server.answers["show_stats"] = {}
    again = WAITING | {"schedule_history": [*TRIES, TRIES[1].replace("25:37", "25:58")]}
    running = RUNNING | {"schedule_history": [*TRIES, "2026-11-29 17:26:38: scheduled"]}
    begun = [WAITING | {"schedule_history": TRIES[:1]}, WAITING, again, running, ENDED]
    server.answers["get_job_meta"] = InTurn(begun)
    assert medflare("job", "wait", "j1", *KIT).stderr.splitlines() == [
        "SUBMITTED, connected sites (1) < min_sites (3)",
        "SUBMITTED, connected sites (2) < min_sites (3)",
        "RUNNING",
        "FINISHED:COMPLETED",
    ]


def test_a_job_that_waited_in_vain_says_for_what(server: LyingSession) -> None:
    history = [*TRIES, "2026-11-29 18:25:37: exceeded max schedule count 10"]
    ended = {"job_id": "j1", "status": "FINISHED:CAN_NOT_SCHEDULE", "schedule_history": history}
    server.answers["get_job_meta"] = ended
    waited = medflare("job", "wait", "j1", *KIT)
    assert waited.exit_code == 5
    assert "FINISHED:CAN_NOT_SCHEDULE, connected sites (2) < min_sites (3)" in waited.stderr
    assert "job j1 never began, and FLARE tries no more" in " ".join(waited.stderr.split())


def test_a_job_that_never_began_has_nothing_to_fetch_or_to_go_on_with(
    server: LyingSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it was "being ended" with a run to go on with, and its result was "no such file or folder"."""
    monkeypatch.setattr(admin_runs, "admin_session", admin_session.admin_session)
    server.answers["get_job_meta"] = WAITING | {"start_time": ""}
    server.answers["abort_job"] = None
    assert answer("job", "abort", "j1", *KIT) == "job j1 is withdrawn; it had not begun\n"
    aborted = WAITING | {"start_time": "", "status": "FINISHED:ABORTED"}
    server.answers["get_job_meta"] = aborted
    assert facts("job", "status", "j1", *KIT)["waits"] == "connected sites (2) < min_sites (3)"
    nothing = "job j1 has not begun, so there is no result"
    assert nothing in refusal(5, "job", "download", "j1", *KIT, "--to", tmp_path)
    assert "job j1 never began, so there is no run to go on with" in refusal(5, "resume", "j1", *KIT)


@pytest.mark.parametrize(
    "said",
    [
        RUNNING | {"start_time": "2026-11-29"},
        RUNNING | {"start_time": 1.5},
        RUNNING,
        JobNotFound("not now"),
        5,
    ],
)
def test_a_job_is_ended_whatever_the_server_says_of_it(server: LyingSession, said: Any) -> None:
    server.answers |= {"get_job_meta": said, "abort_job": None}
    assert "medflare resume j1 --kit` goes on with its run" in answer("job", "abort", "j1", *KIT)


@pytest.mark.parametrize(
    "history", [None, "text", {}, [], [[]], [5, None], ["no time"], ["x" * 10**6], ["t: \x1b[2Jred"]]
)
def test_a_server_may_say_of_a_job_that_waits_what_it_likes(server: LyingSession, history: Any) -> None:
    server.answers["get_job_meta"] = WAITING | {"schedule_history": history}
    assert facts("job", "status", "j1", *KIT).get("waits", "") in ("", "red", "[2Jred")


def test_a_folder_that_is_no_kit_is_named(tmp_path: Path) -> None:
    assert "is no admin's startup kit" in refusal(2, "job", "status", "--kit", tmp_path)


def in_round(number: int) -> dict[str, Any]:
    return {"server": {"Progress": {"phase": "round", "round": number, "rounds": 20}}}


def test_a_job_is_waited_for_and_each_of_its_rounds_is_said_once(server: LyingSession) -> None:
    server.answers["get_job_meta"] = InTurn([RUNNING | {"status": "SUBMITTED"}, *[RUNNING] * 5, ENDED])
    server.answers["show_stats"] = InTurn([{}, in_round(0), in_round(0), in_round(1), in_round(1)])
    waited = medflare("job", "wait", "j1", *KIT)
    assert waited.stderr.splitlines() == [
        "SUBMITTED",
        "RUNNING",
        "RUNNING, round, round 1 of 20",
        "RUNNING, round, round 2 of 20",
        "FINISHED:COMPLETED",
    ]
    assert waited.stdout == "FINISHED:COMPLETED; `medflare job download j1` fetches the result\n"
    server.answers["get_job_meta"] = ENDED
    assert facts("job", "wait", "j1", *KIT) == {"job": "j1", "status": "FINISHED:COMPLETED"}


@pytest.mark.parametrize(
    "away", [NoConnection("cannot connect"), SessionClosed("by the server"), NoReply("")]
)
def test_a_server_that_is_started_again_is_waited_for(server: LyingSession, away: Exception) -> None:
    server.answers["get_job_meta"] = InTurn([RUNNING, away, away, ENDED])
    server.answers["show_stats"] = JobNotRunning("it ended in between")
    first, gone, last = medflare("job", "wait", "j1", *KIT).stderr.splitlines()
    assert (first, last) == ("RUNNING", "FINISHED:COMPLETED")
    assert gone.startswith("the server does not answer; it is waited for")
    assert type(away).__name__ in gone


@pytest.mark.parametrize(
    "silent", [NoReply(""), InternalError("no answer"), JobNotFound("no such job"), JobNotRunning("it ended")]
)
def test_a_job_that_ends_while_it_is_asked_how_far_it_is_is_waited_for(
    server: LyingSession, silent: Exception
) -> None:
    """Seen on a busy machine after an abort: the server answers, and the job's own process no more."""
    server.answers["get_job_meta"] = InTurn([RUNNING, RUNNING, ENDED])
    server.answers["show_stats"] = silent
    assert medflare("job", "wait", "j1", *KIT).stderr.split() == ["RUNNING", "FINISHED:COMPLETED"]


def test_a_job_whose_file_flare_writes_anew_is_not_lost(server: LyingSession) -> None:
    """Seen on a busy machine: between two looks at a job that runs, FLARE knew of no such job."""
    gone = JobNotFound("no such job")
    server.answers["show_stats"] = {}
    server.answers["get_job_meta"] = InTurn([RUNNING, gone, gone, gone, RUNNING, gone, ENDED])
    assert medflare("job", "wait", "j1", *KIT).stderr.split() == ["RUNNING", "FINISHED:COMPLETED"]
    server.answers["get_job_meta"] = InTurn([gone, gone, ENDED])
    assert medflare("job", "wait", "j1", *KIT).stderr.split() == ["FINISHED:COMPLETED"]
    server.answers["get_job_meta"] = InTurn([RUNNING, gone])
    assert "nothing is known of job j1 (JobNotFound" in refusal(5, "job", "wait", "j1", *KIT)


def test_a_server_that_never_answers_is_not_waited_for(server: LyingSession) -> None:
    server.answers["get_job_meta"] = NoConnection("cannot connect")
    said = refusal(5, "job", "wait", "j1", *KIT)
    assert "nothing is known of job j1: the server does not answer (NoConnection: cannot connect)" in said
    server.answers["get_job_meta"] = JobNotFound("no such job")
    assert "`medflare job status` lists the jobs" in refusal(5, "job", "wait", "j1", *KIT)


def test_a_job_that_ended_otherwise_or_too_late_is_an_error(server: LyingSession) -> None:
    server.answers["get_job_meta"] = RUNNING | {"status": "FINISHED:ABORTED"}
    assert "job j1 ended as FINISHED:ABORTED" in refusal(5, "job", "wait", "j1", *KIT)
    server.answers["get_job_meta"], server.answers["show_stats"] = RUNNING, {"server": "no mapping"}
    assert "job j1 has not ended. It goes on" in refusal(5, "job", "wait", "j1", *KIT, "--minutes", 0)
    server.answers["get_job_meta"] = InTurn([RUNNING, NoConnection("gone")])
    assert "has not ended" in refusal(5, "job", "wait", "j1", *KIT, "--minutes", 0.001)


def test_a_watched_run_whose_server_is_started_again_is_watched_on(
    server: LyingSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a server that left within a session ended the watch."""
    job = tmp_path / "job"
    write_json(job / "meta.json", {})
    write_json(job / SERVER_CONFIG, {"workflows": [{"args": {"max_resumptions": 0}}]})
    server.answers["get_job_meta"] = InTurn([RUNNING, NoConnection("started again"), ENDED])
    server.answers["show_stats"] = {}
    server.answers["download_job_result"] = InTurn([SessionClosed("started again"), str(tmp_path)])
    with pytest.raises(RunError, match=r"run j1 is running .* The server wrote no record"):
        admin_runs.watch_job(Path("kit"), "j1", "j1", print)
