# SPDX-License-Identifier: Apache-2.0
"""Small sites with synthetic notes for the tests of Fed-MedLoRA, on the embedded notes decoder in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.learner import ExtractionLearner, build
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.synthetic.notes.files import write_validation_notes
from site_builders import site_config

SMALL: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "optimiser": {"batch": 2, "lr": 2e-3},
    "max_tokens": 400,
    "eval_limit": 1,
}
PLAN = RoundPlan(round=0, rounds=2, steps=2)
SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25}


def write_hospitals(folder: Path) -> Path:
    """site-1 and site-2 with four notes each, and two validation notes."""
    for number in (1, 2):
        write_notes_hospital(NOTE_HOSPITALS[number - 1], folder / f"site-{number}", 4, "jsonl")
    write_validation_notes(folder / "validation", count=2)
    return folder


def site(notes: Path, name: str = "site-1", validation: Path | None = None, **cohort: Any) -> SiteConfig:
    """The settings of the site `name` below `notes`; `cohort` changes how its notes are read."""
    further = {"validation": {"format": "notes_jsonl", "root": str(validation)}} if validation else {}
    return site_config("notes_jsonl", notes / name, None, name, {"split": SPLIT} | cohort, **further)


def make(config: SiteConfig, seed: int = 0, **settings: Any) -> ExtractionLearner:
    """A learner that has loaded its own initial state."""
    learner = build(SMALL | settings, config, seed)
    learner.load_shared(learner.initial_shared())
    return learner


@torch.no_grad()
def logits(model: Any, learner: ExtractionLearner) -> Tensor:
    """What a causal model says of the first question that `learner` was trained on."""
    ids = torch.tensor([learner.train_rows[0].ids])
    found: Tensor = model.eval()(input_ids=ids).logits
    return found
