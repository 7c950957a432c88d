# SPDX-License-Identifier: Apache-2.0
"""Canaries: how they are put into a cohort, and what an audit finds of them with and without noise."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from audited_runs import make_run, summaries_site

from command_line import facts, refusal
from medflare.auditing.canaries import (
    KINDS,
    LIST,
    OTHERS,
    make_canaries,
    read_canaries,
    write_canaries,
)
from medflare.core.errors import DataError
from medflare.core.inventory import ENTITY_TYPES
from medflare.core.patient_privacy import Mechanism
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site
from medflare.differential_privacy.accounting import epsilon

DP = {"noise_multiplier": 40.0, "clip_norm": 1.0, "sample_rate": 0.5, "records_per_patient": 4}
STEPS = 80


def canary_run(
    folder: Path, backbone: Path, steps: int, count: int = 60, repeat: int = 4, **settings: Any
) -> dict[str, Any]:
    """Train a site with canaries and audit it."""
    site = load_site(summaries_site(folder / "own", backbone=backbone, patients=8), "site-1")
    made = make_canaries("summaries", count, (repeat,), random.Random(0))
    site_file = write_canaries(site, made, folder / "audit")
    run = make_run(folder, backbone, steps, site_file, **settings)
    listed = folder / "audit" / LIST
    found = facts("audit", run.folder, "-f", site_file, "--canaries", listed)["sites"]["site-1"]
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("known_noise")
def test_without_noise_the_audited_epsilon_is_large_and_with_it_below_what_the_accountant_says(
    tmp_path: Path, tiny_backbone: Path
) -> None:
    """Twice the same private training, once with its noise left out as by an error: only that is caught."""
    pytest.importorskip("opacus")
    promised = epsilon([Mechanism(noise=DP["noise_multiplier"], rate=0.5, steps=STEPS)], 1e-5)
    plain = canary_run(tmp_path / "plain", tiny_backbone, STEPS, dp=DP | {"noise_multiplier": 1e-9})
    private = canary_run(tmp_path / "private", tiny_backbone, STEPS, dp=DP)
    assert plain["canaries"]["epsilon_lower_bound"] > 1 > promised
    assert private["canaries"]["epsilon_lower_bound"] <= promised
    row = plain["canaries"]["repetitions"][0]
    assert row["exposure"] > row["exposure_left_out"]
    assert row["inserted"] + row["left_out"] == 60
    assert plain["membership"]["members"]["patients"] == 4  # canaries are no patients
    assert private["canaries"]["repetitions"][0]["extracted"] == 0


def test_a_secret_that_is_repeated_often_is_written_out_and_one_left_out_is_not(
    tmp_path: Path, tiny_backbone: Path
) -> None:
    row = canary_run(tmp_path, tiny_backbone, steps=150, count=4, repeat=16)["canaries"]["repetitions"][0]
    assert row["extracted"] == 1
    assert row["exposure"] == 5
    assert row["extracted_left_out"] == 0


@pytest.mark.parametrize("task", KINDS)
def test_every_kind_of_canary_is_read_back_as_it_was_made(task: str, tmp_path: Path) -> None:
    kind = KINDS[task]
    made = make_canaries(task, 12, (1, 4), random.Random(1))
    own = tmp_path / "own"
    own.mkdir()
    patient = kind.record("real-1", "real", made.canaries[0].key + " zz", made.canaries[0].secret)
    (own / "train.jsonl").write_text(json.dumps(kind.row(patient)) + "\n")
    (tmp_path / "site.yaml").write_text(
        json.dumps({"name": "s", "cohort": {"format": kind.format, "root": "own"}})
    )
    site_file = write_canaries(load_site(tmp_path / "site.yaml", "s"), made, tmp_path / "out")
    cohort = load_cohort(load_site(site_file, "s"))
    records = [*cohort.notes, *cohort.questions, *cohort.summaries]
    included = [canary for canary in made.canaries if canary.included]
    assert len(records) == 1 + sum(canary.repeat for canary in included)
    assert {record.split for record in records} == {"train"}
    assert not cohort.skipped
    assert read_canaries(tmp_path / "out" / LIST) == made
    for canary in made.canaries:
        assert len({canary.secret, *canary.others}) == OTHERS + 1


@pytest.mark.parametrize("types", [["problem"], ["test", "drug", "dosage"], None])
def test_canaries_of_notes_are_marked_as_what_the_site_looks_for(
    types: list[str] | None, tmp_path: Path
) -> None:
    """Otherwise a canary's mark is asked about nowhere, and its note teaches that there are no modifiers."""
    row = {
        "doc_id": "n1",
        "text": "Asthma.",
        "entities": [{"id": "T1", "label": "problem", "spans": [[0, 6]]}],
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.jsonl").write_text(json.dumps(row | {"label": "problem"}) + "\n")
    cohort = {"format": "notes_jsonl", "root": "own", "tasks": ["ner"]}
    cohort |= {"annotated": types} if types else {}
    (tmp_path / "site.yaml").write_text(json.dumps({"name": "s", "cohort": cohort}))
    made = facts("cohort", "canaries", tmp_path / "site.yaml", tmp_path / "out", "--count", 40)
    notes = load_cohort(load_site(tmp_path / "out/site.yaml", "s")).notes
    assert len(notes) == 1 + made["included"]
    assert {(note.tasks, note.annotated) for note in notes} == {(("ner",), tuple(types) if types else None)}
    heads = set(types or ENTITY_TYPES) & set(ENTITY_TYPES)
    listed = read_canaries(tmp_path / "out" / LIST).canaries
    marks = {mark for canary in listed for mark in (canary.secret, *canary.others)}
    assert {mark.split()[1] for mark in marks} == heads
    assert {len({canary.secret, *canary.others}) for canary in listed} == {OTHERS + 1}
    assert all(int(mark.split()[0]) < len(listed[0].key.split()) for mark in marks)


def test_the_command_makes_a_site_beside_the_own_one(tmp_path: Path) -> None:
    site_file = summaries_site(tmp_path / "own", patients=4)
    made = facts("cohort", "canaries", site_file, tmp_path / "out", "--count", 40, "--repeat", "1,4")
    assert made["task"] == "summaries"
    listed = read_canaries(tmp_path / "out" / LIST).canaries
    assert sum(canary.included for canary in listed) == made["included"]
    assert [canary.repeat for canary in listed[:4]] == [1, 4, 1, 4]
    assert len(load_cohort(load_site(tmp_path / "out/site.yaml", "site-1")).summaries) == 8 + sum(
        canary.repeat for canary in listed if canary.included
    )
    assert "is there already" in refusal(2, "cohort", "canaries", site_file, tmp_path / "out")
    assert "expected numbers from 1 to 1000" in refusal(
        2, "cohort", "canaries", site_file, tmp_path / "other", "--repeat", "0"
    )


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_canaries(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"task": "summaries", "canaries": [], "more": 1}')
    with pytest.raises(DataError, match="is no list of canaries"):
        read_canaries(tmp_path / "x.json")
