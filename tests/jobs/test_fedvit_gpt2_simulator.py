# SPDX-License-Identifier: Apache-2.0
"""The three FedViT-GPT2 jobs through FLARE's simulator, small: from site.yaml to a model that drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.data.settings.site import load_site
from medflare.recipes import simulate
from medflare.recipes.after_run import score_site

pytestmark = pytest.mark.simulator
JOBS = Path(__file__).parents[2] / "jobs"
PART = {"layers": 1, "width": 32, "attention_heads": 2}
SMALL: dict[str, Any] = {
    "settings.model": {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}},
    "settings.max_report_tokens": 30,
    "settings.decoding.max_new_tokens": 8,
    "settings.eval_limit": 4,
    "final_limit": 4,
    "steps": 2,
    "worker": "process",
}


@pytest.fixture(scope="module")
def three_sites(without_java: None, small_hospital: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site.yaml with three sites on one small hospital."""
    site = {
        "cohort": {"format": "manifest", "root": str(small_hospital)},
        "backbone": {"precision": "fp32"},
        "device": "cpu",
    }
    path = tmp_path_factory.mktemp("sites") / "site.yaml"
    path.write_text(yaml.safe_dump({"sites": {f"site-{n}": site for n in (1, 2, 3)}}))
    return path


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("fedvit_gpt2_krum", "selected"),
        pytest.param("fedvit_gpt2", None, marks=pytest.mark.long),
        pytest.param("fedvit_gpt2_l_fedavg", "weights", marks=pytest.mark.long),
    ],
)
def test_from_site_yaml_to_a_model_that_drafts(
    job: str, told: str | None, three_sites: Path, small_hospital: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "ws"
    record = simulate.run_simulator(
        JOBS / job, workspace, site_file=three_sites, rounds=1, changes=SMALL, timeout=900
    )
    assert sorted(record.rounds[0].accepted) == ["site-1", "site-2", "site-3"]
    assert told is None or told in record.rounds[0].rule
    assert record.rounds[0].metrics["site-1"]["train_val_loss"] > 0
    assert {item.adapter for item in record.evaluations} == {"generic"}

    server = workspace / simulate.SERVER_FOLDER
    result = server / record.artefacts["final"]
    assert sum(t.numel() for t in load_file(result / "vit_gpt2.safetensors").values()) == sum(
        record.parameters.values()
    )
    assert "PeftModel" not in (result / "README.md").read_text()
    image = next((small_hospital).rglob("*.png"))
    drafted = CliRunner().invoke(app, ["generate", str(image), "-r", str(server), "--json"])
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)[0]["findings"] == {}
    tested = score_site(server / "run.json", load_site(three_sites, "site-2"))
    assert tested.studies > 0
    assert "bleu_4" in tested.metrics
