# SPDX-License-Identifier: Apache-2.0
"""Sites with summaries of a few patients, two of each, and their private learners on the tiny backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medflare.learners.registry import build_learner
from site_builders import site_config

METHOD = "summarisation"
PATIENTS = 4
SMALL: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "optimiser": {"batch": 2, "lr": 2e-3},
    "max_tokens": 120,
    "sharing": "freeze_a",
    "dp": {"noise_multiplier": 1.0, "sample_rate": 0.5},
}
FOUND = ("Large pleural effusion", "Mild edema", "Right pneumothorax", "Left rib fracture", "Lungs clear")


def rows(patients: int = PATIENTS, named: bool = True) -> list[dict[str, Any]]:
    """Two summaries of each patient, to train on, and two of others for validation and test."""
    out: list[dict[str, Any]] = []
    for number in range(2 * patients + 2):
        found, last = FOUND[number % 5], number - 2 * patients
        row = {
            "id": f"s{number}",
            "patient_id": f"patient-{number % patients}" if last < 0 else f"other-{last}",
            "findings": f"{found}. The heart is normal in size. Seen by reader {number}.",
            "impression": f"{found}.",
            "split": "train" if last < 0 else ("val", "test")[last],
        }
        if not named:
            del row["patient_id"]
        out.append(row)
    return out


def write_site(folder: Path, records: list[dict[str, Any]] | None = None) -> Path:
    """The folder with the records of a site."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in (rows() if records is None else records)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def make(folder: Path, backbone: Path, seed: int = 0, **settings: Any) -> Any:
    """A learner that has loaded its own initial state."""
    config = site_config("summaries_jsonl", folder, backbone, "site-1")
    learner = build_learner(METHOD, SMALL | settings, config, seed)
    learner.load_shared(learner.initial_shared())
    return learner
