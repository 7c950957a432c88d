# SPDX-License-Identifier: Apache-2.0
"""Whole runs with canaries at one site, audited there: with hardly any noise, and with noise."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from fed_harness import SITES, Make, completed
from fed_real import real_federation

from command_line import facts
from medflare.auditing.canaries import LIST, make_canaries, write_canaries
from medflare.data.settings.site import load_site

WORDS = ("lung", "heart", "liver", "edema", "clear", "right", "left", "small", "large", "node", "rib", "mild")
STEPS = 160
SETTINGS: dict[str, Any] = {
    "lora": {"rank": 16, "lora_alpha": 32, "dropout": 0.0},
    "optimiser": {"batch": 24, "lr": 0.5},
    "sharing": "freeze_a",
    "max_tokens": 120,
    "eval_limit": 1,
    "writing": {"max_new_tokens": 3},
}


def own_site(folder: Path, name: str, backbone: Path, seed: int) -> Path:
    """site.yaml of a site with two training and two test patients."""
    drawn = random.Random(seed)
    rows = [
        {
            "id": f"{name}-{number}",
            "patient_id": f"{name}-p{number}",
            "findings": " ".join(drawn.choices(WORDS, k=6)),
            "impression": " ".join(drawn.choices(WORDS, k=6)),
            "split": ("train", "test")[number % 2],
        }
        for number in range(4)
    ]
    (folder / name).mkdir(parents=True)
    (folder / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = {
        "name": name,
        "cohort": [{"format": "summaries_jsonl", "root": str(folder / name)}],
        "backbone": {"folder": str(backbone), "precision": "fp32"},
        "device": "cpu",
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(site))
    return folder / f"{name}.yaml"


@pytest.fixture
def audited(tmp_path: Path, tiny_backbone: Path) -> Make:
    def make(noise: float) -> Any:
        """Run three sites under this noise; return what site 1 finds of its canaries, and ε of the run."""
        folder = tmp_path / f"noise-{noise}"
        files = {name: own_site(folder, name, tiny_backbone, k) for k, name in enumerate(SITES)}
        made = make_canaries("summaries", 60, (4,), random.Random(0))
        files["site-1"] = write_canaries(load_site(files["site-1"], "site-1"), made, folder / "audit")
        dp = {"noise_multiplier": noise, "sample_rate": 0.5, "records_per_patient": 4, "delta": 1e-5}
        run = real_federation(
            folder,
            {name: yaml.safe_load(file.read_text()) for name, file in files.items()},
            method="summarisation",
            settings=SETTINGS | {"dp": dp},
            rule={"rule": "freeze_a"},
            controller={"num_rounds": 1, "steps": STEPS, "final_limit": 1},
        )
        record = completed(run)
        asked = ("audit", run.folder, "-f", files["site-1"], "--site", "site-1")
        found = facts(*asked, "--canaries", folder / "audit" / LIST)["sites"]["site-1"]
        assert found["epsilon"] == record.epsilon
        return found["canaries"]["epsilon_lower_bound"], record.epsilon

    return make


@pytest.mark.long
@pytest.mark.usefixtures("known_noise")
def test_the_audit_of_a_run_is_large_without_noise_and_below_the_account_with_it(audited: Make) -> None:
    pytest.importorskip("opacus")
    bare, much = audited(0.35)
    bound, promised = audited(40.0)
    assert much > 50, "so little noise is none"
    assert bare > 1 > promised, "the audit would tell a run without noise from one that keeps its promise"
    assert bound <= promised
