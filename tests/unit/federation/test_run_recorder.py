# SPDX-License-Identifier: Apache-2.0
"""The record is the same JSON as pydantic's, and what a write costs does not grow with the rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord, read_record
from medflare.federation.server import run_recorder
from medflare.federation.server.run_recorder import RunRecorder

HOSTILE = 'x\n "rounds": [],\n y'
"""Of a site that would break the JSON; line breaks in strings are escaped."""


def recorder(tmp_path: Path) -> RunRecorder:
    made = RunRecorder(
        tmp_path / "run.json", "job", "run-1", 7, {"rounds": []}, copy=tmp_path / "copy/run.json"
    )
    made.record.sites[HOSTILE] = SiteRecord(backbone=HOSTILE, fingerprint="f0")
    return made


def test_the_text_is_that_of_the_whole_record(tmp_path: Path) -> None:
    writer = recorder(tmp_path)
    for number in range(4):
        writer.write()
        assert writer.path.read_text() == writer.record.model_dump_json(indent=1)
        entry = writer.open_round(number)
        entry.absent[HOSTILE] = HOSTILE
        entry.exchanges.append(RoundRecord(round=number, seconds=0.5))
        writer.write()
        entry.mean["val_loss"] = 0.25  # a round changes until the next one begins
    writer.close("completed")
    assert writer.path.read_text() == writer.copy.read_text() == writer.record.model_dump_json(indent=1)
    assert read_record(writer.path) == writer.record
    again = recorder(tmp_path)
    again.write()
    again.go_on_with(RunRecord.model_validate_json(writer.text()))
    assert again.text() == again.record.model_dump_json(indent=1)


def test_a_round_that_is_over_is_made_into_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, made, real = recorder(tmp_path), list[int](), run_recorder._text_in_list
    monkeypatch.setattr(
        run_recorder, "_text_in_list", lambda entry: (made.append(entry.round), real(entry))[1]
    )
    for number in range(30):
        writer.open_round(number)
        writer.write()
    assert len(made) == 30 + 29
