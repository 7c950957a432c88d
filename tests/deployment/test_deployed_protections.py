# SPDX-License-Identifier: Apache-2.0
"""Masked and encrypted runs over mTLS end as the plain one does, and a site lost on the way is recovered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import deployed_jobs
import pytest
import yaml
from deployed import SITES, Federation, Finished
from deployed_programs import LONG, wait_until

from medflare.core.run_record import ALL_SITES
from medflare.protections.registry import PROTECTIONS
from medflare.wire.files import load_tensors

ROUNDED = 1e-5
"""Of a mean after one round, relative: more than the declared error of both protections and of fp32."""
TRAINED_ON = 2e-5
"""Largest difference of the adapters after two rounds: the second trains on from what the first rounded.
A hundredth of one optimiser step."""
ADAPTER = "result/adapter/adapter_model.safetensors"


def furthest(ours: Path, theirs: Path) -> float:
    """The largest absolute difference of two final adapters."""
    found, expected = (load_tensors(path)[0] for path in (ours, theirs))
    assert found.keys() == expected.keys()
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-3
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


@pytest.mark.parametrize("protection", ["masking", "he"])
def test_a_protected_run_equals_the_plain_one(
    federation: Federation, fed_medlora_run: Finished, tmp_path: Path, protection: str
) -> None:
    job = deployed_jobs.tiny_job(tmp_path, "fed_medlora", protection=protection, worker="thread")
    run = federation.complete(job, tmp_path / "out")
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed")
    holders = [run.folder]
    if protection == "he":  # the server cannot read the sum: the sites write what it means
        holders = [federation.run_folder(site, run.job_id) for site in SITES]
        assert not (run.folder / ADAPTER).exists()
    for holder in holders:
        assert furthest(holder / ADAPTER, fed_medlora_run.folder / ADAPTER) < TRAINED_ON
    theirs = fed_medlora_run.record.rounds[0].mean["val_loss"]
    if protection == "masking":
        assert run.record.rounds[0].mean["val_loss"] == pytest.approx(theirs, rel=ROUNDED)
        assert {item.site for item in run.record.evaluations} == {ALL_SITES}
    else:  # what sites measure is nobody's but theirs
        assert "val_loss" not in run.record.rounds[0].mean
        assert run.record.evaluations == []
    assert [sorted(entry.accepted) for entry in run.record.rounds] == [list(SITES)] * 2
    assert run.record.protections == PROTECTIONS[protection].seals
    for site in SITES:
        sent = [line for line in ledger(federation, site, run.job_id) if line["task"] == "fit"]
        assert [line["protections"] for line in sent] == [PROTECTIONS[protection].seals] * 2


def ledger(federation: Federation, site: str, job_id: str) -> list[dict[str, object]]:
    """The lines of a site's ledger so far."""
    path = federation.run_folder(site, job_id) / "egress.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.fixture
def fourth(federation: Federation, site_file: Path) -> Iterator[str]:
    """A fourth site, which a test may kill: three are the fewest whose sum a site helps to open."""
    block = yaml.safe_load(site_file.read_text())["sites"]["site-3"]
    (federation.kits / "site-4" / "local" / "site.yaml").write_text(yaml.safe_dump(block))
    with federation.joined("site-4") as site:
        yield site


@pytest.mark.faults  # tests/federation/test_masked_rounds.py loses sites in each phase, without a network
def test_a_site_that_is_gone_after_it_shared_its_keys_is_recovered(
    federation: Federation, fourth: str, tmp_path: Path
) -> None:
    # Another seed than other masked jobs of these kits: from one state a site helps to open one sum only.
    changes = {"min_responses": 3, "steps": 8, "straggler_timeout": 25, "protection": "masking", "seed": 11}
    job_id = federation.submit(deployed_jobs.tiny_job(tmp_path, "fed_medlora", **changes))

    def shared() -> bool:
        sent = ledger(federation, fourth, job_id)
        return any((line["task"], line["round"]) == ("shares", 1) for line in sent)

    wait_until("the shares of round 1", shared, LONG, every=0.01)
    federation.wait_training(fourth, job_id)
    federation.kill(fourth)
    run = federation.finished(job_id, tmp_path / "out")
    assert run.record.status == "completed", run.record.reason
    assert [sorted(entry.accepted) for entry in run.record.rounds] == [[*SITES, fourth], list(SITES)]
    assert set(run.record.rounds[1].absent) == {fourth}
    assert (run.folder / ADAPTER).is_file()
