# SPDX-License-Identifier: Apache-2.0
"""jobs/fedmrg through FLARE's simulator, small: from site.yaml to an adapter that opens."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.core.errors import ConfigError, RunError
from medflare.evaluation.meteor import java_present
from medflare.models.report_result import load_generator
from medflare.recipes import simulate

pytestmark = pytest.mark.simulator
JOB = Path(__file__).parents[2] / "jobs/fedmrg"
SMALL: dict[str, Any] = {
    "settings.model.encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
    "settings.model.lora": {"rank": 4, "lora_alpha": 8},
    "settings.batch": 8,
    "settings.max_report_tokens": 30,
    "settings.decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0},
    "settings.eval_limit": 4,
    "final_limit": 4,
    "steps": 2,
}


@pytest.fixture(scope="session")
def two_sites(small_hospital: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site.yaml with two sites on one small hospital."""
    site = {
        "cohort": {"format": "manifest", "root": str(small_hospital)},
        "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
        "device": "cpu",
    }
    path = tmp_path_factory.mktemp("sites") / "site.yaml"
    path.write_text(yaml.safe_dump({"sites": {"site-1": site, "site-2": site}}))
    return path


def test_from_site_yaml_to_an_adapter_that_opens(
    two_sites: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "ws"
    record = simulate.run_simulator(
        JOB, workspace, site_file=two_sites, rounds=2, canary=True, changes=SMALL, timeout=900
    )
    assert [sorted(entry.accepted) for entry in record.rounds] == [["site-1", "site-2"]] * 2
    assert record.sites["site-1"].fingerprint == record.sites["site-2"].fingerprint != ""
    assert record.best_round is not None
    assert record.configuration["settings"]["max_report_tokens"] == 30
    traffic = record.rounds[1].traffic["site-2"]
    assert traffic.sent == record.expected_bytes_per_direction > 0
    folder = workspace / simulate.SERVER_FOLDER
    model, decoding = load_generator(
        folder / record.artefacts["final"], backbone=tiny_backbone, precision="fp32"
    )
    assert decoding.max_new_tokens == 8
    assert len(list(model.adapters.state("generic"))) > 0
    assert {item.adapter for item in record.evaluations} == {"generic", "personalised"}
    assert {"meteor" in item.metrics for item in record.evaluations} == {java_present()}
    ledger = (workspace / "site-2/simulate_job/egress.jsonl").read_text().splitlines()
    assert (
        sum(json.loads(line)["bytes"] for line in ledger if json.loads(line)["task"] == "fit")
        == 3 * traffic.sent
    )


def test_a_wrong_method_setting_is_told_with_its_valid_names(two_sites: Path, tmp_path: Path) -> None:
    changes = {"settings.learning_rate": 1, "deadline": 0}
    with pytest.raises(ConfigError, match=r"(?s)deadline.*learning_rate: no such setting.*Valid here"):
        simulate.run_simulator(JOB, tmp_path / "ws", site_file=two_sites, changes=changes)


@pytest.mark.long  # tests/federation/test_rounds.py has such a site without the simulator
def test_a_site_that_cannot_read_its_cohort_is_named_and_nothing_of_it_is_told(
    two_sites: Path, tmp_path: Path
) -> None:
    document = yaml.safe_load(two_sites.read_text())
    document["sites"]["site-2"] = copy.deepcopy(document["sites"]["site-2"])
    document["sites"]["site-2"]["cohort"]["root"] = str(tmp_path / "patients-of-ward-7")
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(RunError) as caught:
        simulate.run_simulator(
            JOB, tmp_path / "ws", site_file=tmp_path / "site.yaml", changes=SMALL, timeout=900
        )
    assert "site-2: E3 DataError" in str(caught.value)
    assert "ward-7" not in str(caught.value)
    assert "ward-7" in (tmp_path / "ws/site-2/simulate_job/worker/worker.log").read_text()
