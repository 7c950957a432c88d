# SPDX-License-Identifier: Apache-2.0
"""Jobs over mTLS end as in the simulator, and nothing but what was declared is left outside the sites."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import deployed_jobs
import peft
import pytest
from deployed import ADMIN, SERVER, SITES, Federation, Finished
from deployed_jobs import Simulated
from deployed_records import assert_same_adapter, contents, differences, facts, found_in
from transformers import AutoModelForCausalLM

from medflare.federation.signed_files import Signer, read_signers
from medflare.wire.files import load_tensors

RUNS = ("fedmrg", "fed_medlora")


@pytest.fixture(scope="module", params=RUNS)
def deployed_run(request: pytest.FixtureRequest) -> tuple[str, Finished]:
    return request.param, request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="module", params=["fedmrg", pytest.param("fed_medlora", marks=pytest.mark.long)])
def compared_run(request: pytest.FixtureRequest, simulated: Any) -> tuple[Finished, Simulated]:
    """A deployed run and the simulator's of the same job; ddcs_qa is compared in test_deployed_selection."""
    return request.getfixturevalue(f"{request.param}_run"), simulated[request.param]


def test_a_job_over_mtls_completes_with_every_site_in_every_round(
    deployed_run: tuple[str, Finished],
) -> None:
    _, run = deployed_run
    assert run.state == "FINISHED:COMPLETED"
    assert run.record.status == "completed"
    assert [sorted(entry.accepted) for entry in run.record.rounds] == [list(SITES)] * 2
    assert run.record.rounds[1].traffic["site-3"].sent == run.record.expected_bytes_per_direction > 0


def test_computing_and_transfer_of_every_site_are_measured(deployed_run: tuple[str, Finished]) -> None:
    _, run = deployed_run
    for entry in run.record.rounds:
        assert list(entry.timings) == list(SITES)
        for spent in entry.timings.values():
            assert min(spent.values()) > 0
            assert sum(spent.values()) < entry.seconds


def test_the_downloaded_record_says_what_the_simulator_says(compared_run: tuple[Finished, Simulated]) -> None:
    run, simulated = compared_run
    assert differences(facts(run.record), facts(simulated.record)) == []


def test_the_downloaded_adapter_is_the_simulators(compared_run: tuple[Finished, Simulated]) -> None:
    run, simulated = compared_run
    for kept in run.record.artefacts.values():
        assert_same_adapter(run.folder / kept, simulated.folder / kept)


def test_the_downloaded_folder_opens_with_peft(
    deployed_run: tuple[str, Finished], tiny_backbone: Path
) -> None:
    _, run = deployed_run
    folder = run.folder / run.record.artefacts["final"]
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_backbone), folder)
    own = peft.get_peft_model_state_dict(model)
    saved = load_tensors(folder / "adapter_model.safetensors")[0]
    assert {key: tuple(value.shape) for key, value in own.items()} == {
        key: tuple(value.shape) for key, value in saved.items()
    }


# ---- what is where afterwards ------------------------------------------------------------------------------


def test_every_site_has_a_ledger_of_all_it_sent(
    federation: Federation, deployed_run: tuple[str, Finished]
) -> None:
    _, run = deployed_run
    for site in SITES:
        text = (federation.run_folder(site, run.job_id) / "egress.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        sent = sum(entry.traffic[site].sent for entry in run.record.rounds)
        assert {line["site"] for line in lines} == {site}
        assert {line["job"] for line in lines} == {run.job_id}
        assert {"prepare", "fit", "evaluate", "finish"} <= {line["task"] for line in lines}
        assert sum(line["bytes"] for line in lines) == sent > 0


def test_every_site_reads_from_the_job_who_signed_it(
    federation: Federation, deployed_run: tuple[str, Finished]
) -> None:
    for site in SITES:
        (config,) = federation.run_folder(site, deployed_run[1].job_id).glob("app*/config")
        (signer,) = read_signers(config, federation.kits / site)
        assert signer == Signer(ADMIN, "coordinator", "project_admin")


def private_words(cohorts: Path) -> set[bytes]:
    """What only a site may hold: the canary, names of images, notes and patients, the folders themselves."""
    rows = [
        json.loads(line)
        for file in (*cohorts.glob("*/studies/manifest.jsonl"), *cohorts.glob("*/notes/notes.jsonl"))
        for line in file.read_text().splitlines()
    ]
    words = {str(row[key]) for row in rows for key in ("patient_id", "study_id", "note_id") if row.get(key)}
    words |= {Path(row["image"]).name for row in rows if "image" in row}
    return {word.encode() for word in words | {deployed_jobs.CANARY, str(cohorts)}}


def test_the_search_looks_into_archives_and_survives_bytes_that_look_like_the_end_of_one(
    tmp_path: Path,
) -> None:
    with zipfile.ZipFile(tmp_path / "run", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metrics.json", "patient-17 " * 50)
    (tmp_path / "key").write_bytes(b"\xff" * 100 + b"PK\x05\x06" + b"\xff" * 100)
    assert found_in(tmp_path, [b"patient-17"]) == ["metrics.json: b'patient-17'"]


def test_no_report_image_or_patient_of_a_site_is_found_outside_it(
    federation: Federation, fedmrg_run: Finished, fed_medlora_run: Finished, cohorts: Path
) -> None:
    private = private_words(cohorts)
    assert len(private) > 60
    own = b"".join(text.lower() for _, text in contents(federation.kits / "site-1"))
    assert deployed_jobs.CANARY.encode() in own, "the search would not find what it looks for"
    outside = (federation.kits / SERVER, federation.kits / ADMIN, fedmrg_run.folder, fed_medlora_run.folder)
    for folder in outside:
        assert found_in(folder, private) == []
