# SPDX-License-Identifier: Apache-2.0
"""A site that was not connected when a job was submitted is named, with the reason, in record and events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fed_harness import SITES, Federation, completed, use_toy_sites

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
