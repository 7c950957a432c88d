# SPDX-License-Identifier: Apache-2.0
"""Small runs to audit: summaries of chance words, learnt by heart or not at all, on a tiny backbone."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord
from medflare.data.settings.site import load_site
from medflare.learners.registry import build_learner
from site_builders import write_result

WORDS = ("lung", "heart", "liver", "edema", "clear", "right", "left", "small", "large", "node", "rib", "mild")
LEARNT: dict[str, Any] = {
    "lora": {"rank": 16, "lora_alpha": 32, "dropout": 0.0},
    "optimiser": {"batch": 24, "lr": 2e-2},
    "max_tokens": 120,
}


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run's folder, and the site.yaml of its site."""

    folder: Path
    site_file: Path
    backbone: Path


def summaries_site(
    folder: Path,
    name: str = "site-1",
    splits: tuple[str, ...] = ("train", "test"),
    backbone: Path | None = None,
    patients: int = 24,
) -> Path:
    """site.yaml of a site whose patients have two summaries each of words of chance."""
    rng, rows = random.Random(0), []
    for patient in range(patients):
        for place in range(2):
            rows.append(
                {
                    "id": f"sum-{patient}-{place}",
                    "patient_id": f"patient-{patient}",
                    "findings": " ".join(rng.choices(WORDS, k=6)),
                    "impression": " ".join(rng.choices(WORDS, k=6)),
                    "split": splits[patient % len(splits)],
                }
            )
    (folder / name).mkdir(parents=True)
    (folder / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = {
        "name": name,
        "cohort": {"format": "summaries_jsonl", "root": name},
        "backbone": {"precision": "fp32", **({"folder": str(backbone)} if backbone else {})},
        "device": "cpu",
    }
    path = folder / "site.yaml"
    path.write_text(json.dumps(site))
    return path


def make_run(
    folder: Path, backbone: Path, steps: int, site_file: Path | None = None, **settings: Any
) -> AuditedRun:
    """A run of one site as the server writes it, after so many steps of training."""
    site_file = site_file or summaries_site(folder, backbone=backbone)
    learner: Any = build_learner("summarisation", LEARNT | settings, load_site(site_file, "site-1"), 0)
    learner.load_shared(learner.initial_shared())
    state = learner.initial_shared()
    if steps:
        delta = learner.fit(RoundPlan(round=0, rounds=1, steps=steps)).delta
        state = {name: state[name] + delta[name] for name in state}
    told = learner.describe()
    write_result(folder / "run/result", learner, state, fingerprint=told.backbone.fingerprint)
    record = RunRecord(
        job="j", method="summarisation", task="summaries", run_id="r", started="2026-01-01T00:00:00Z"
    )
    record.sites["site-1"] = SiteRecord(
        backbone="tiny", fingerprint=told.backbone.fingerprint, examples=dict(told.examples)
    )
    record.configuration = {"settings": LEARNT | settings, "controller": {"steps": steps or 1}}
    record.rounds = [RoundRecord(round=0, seconds=1.0, accepted={"site-1": 1})]
    record.artefacts["final"] = "result/adapter"
    record.write(folder / "run/run.json")
    return AuditedRun(folder / "run", site_file, backbone)
