# SPDX-License-Identifier: Apache-2.0
"""Small FedTAR sites for tests: a folder of visits and the settings of a learner that is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.data.settings.site import SiteConfig
from medflare.learners.fedtar.learner import FedTARLearner, build
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import write_follow_up
from site_builders import site_config

VISITS = 3
SMALL: dict[str, Any] = {
    "visits": VISITS,
    "model": {
        "encoder": {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2},
        "lora": {"rank": 2, "lora_alpha": 4, "targets": ["q_proj", "v_proj"]},
    },
    "patient": {"width": 4, "rank": 2, "lora_alpha": 4},
    "mixture": {"components": 4, "least_patients": 2},
    "batch": 4,
    "lr": 3e-3,
    "max_report_tokens": 24,
    "decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0, "repetition_penalty": 1.0},
    "eval_batch": 8,
    "eval_limit": 4,
}
SPLIT = {"train": 0.6, "val": 0.2, "test": 0.2}


def write_visits(folder: Path, number: int = 0, patients: int = 20, visits: int = VISITS) -> Path:
    """A synthetic hospital's visits, 32 pixels a side."""
    write_follow_up(DEMO_HOSPITALS[number], folder, patients, visits, size=32)
    return folder


def change_rows(folder: Path, **entries: Any) -> None:
    """Overwrites columns in every row of a folder's manifest."""
    file = folder / "manifest.jsonl"
    rows = [json.loads(line) | entries for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def site(
    folder: Path,
    backbone: Path | None,
    name: str = "site-1",
    split: dict[str, float] | None = None,
    **more: Any,
) -> SiteConfig:
    shares = {"split": SPLIT if split is None else split, "columns": {"split": None}}
    return site_config("manifest", folder, backbone, name, {"visits": {"order": "visit", **more}, **shares})


def learner(config: SiteConfig, **settings: Any) -> FedTARLearner:
    """With the first state loaded, and a mixture that needs no other site unless one is asked for."""
    mixture = {"source": "global_fixed", **SMALL["mixture"], **settings.pop("mixture", {})}
    site_learner = build(SMALL | {"mixture": mixture} | settings, config, 0)
    site_learner.load_shared(site_learner.initial_shared())
    return site_learner


def plan(number: int = 0, rounds: int = 6, **more: Any) -> RoundPlan:
    return RoundPlan(round=number, rounds=rounds, **more)


def at_visit(
    visit: int, number: int = 0, visits: int = VISITS, slopes: bool = False, **more: Any
) -> RoundPlan:
    """The exchange of a visit of round `number`."""
    hint = {"round": number, "visit": visit, "visits": visits, "slopes": slopes, "days": False}
    return plan(number * visits + visit - 1, hints=RoundHints.from_json({"temporal": hint}), **more)


def equal(one: State, other: State) -> bool:
    """Whether two states have the same tensors, to the last bit."""
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)
