# SPDX-License-Identifier: Apache-2.0
"""FedMRG under mode `async`: a slow site's local adapters are those that it would have in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fed_equality import real_learners
from fed_harness import SITES, completed, final
from fed_real import real_federation, take_turns
from fed_tamper import together, watched
from test_async_rounds import Conductor

from medflare.aggregation import make_rule
from medflare.core.plan import RoundPlan
from medflare.in_process.buffered_loop import federate_buffered
from medflare.in_process.clocked_loop import Workload
from medflare.learners.fedmrg import learner
from medflare.learners.fedmrg.learner import FedMRGLearner
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.protocol.messages import FIT
from medflare.selection.clock import SimulatedClock, read_profiles
from medflare.wire.files import load_tensors

ROUNDS, STEPS, SEED = 7, 1, 7
SPEEDS = {"site-1": 0.1, "site-2": 0.25, "site-3": 1.2}
"""Seconds an example: site-3's updates are rounds old."""
SETTINGS: dict[str, Any] = {
    "model": {
        "encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
        "lora": {"rank": 4, "lora_alpha": 8},
    },
    "batch": 8,
    "lr": 1e-3,
    "max_report_tokens": 30,
    "decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0},
    "eval_limit": 1,
}


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=ROUNDS, steps=STEPS, seed=SEED)


@pytest.mark.long
def test_local_adapters_stay_at_their_sites_and_are_those_of_one_process(
    small_hospital: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turns(monkeypatch, (FedMRGLearner, "fit"), (learner, "ReportGenerator"))
    monkeypatch.setattr(FedMRGLearner, "finish", lambda *_: [])  # scores have tests of their own
    site = {
        "cohort": {"format": "manifest", "root": str(small_hospital)},
        "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
        "device": "cpu",
        "policy": {"min_prototype": 2},
    }
    run = real_federation(
        tmp_path,
        dict.fromkeys(SITES, site),
        method="fedmrg",
        settings=SETTINGS,
        controller={
            "mode": "async",
            "buffer": 2,
            "num_rounds": ROUNDS,
            "steps": STEPS,
            "seed": SEED,
            "evaluate_every": 0,
        },
    )
    learners = real_learners(run, SEED)
    profiles = {s: {"seconds_per_example": v, "down": 1e3, "up": 1e3} for s, v in SPEEDS.items()}
    clock = SimulatedClock(read_profiles(profiles), 0)
    plain = federate_buffered(
        learners, make_rule("weighted_mean", {}), ROUNDS, plan, clock, Workload(down=8, up=8), 2
    )
    asked, ages = dict.fromkeys(SITES, 0), list[dict[str, int]]()
    for entry in plain.rounds:
        ages.append({name: entry.number - asked[name] for name in entry.timings})
        asked |= dict.fromkeys(entry.timings, entry.number + 1)
    conductor, sent = Conductor(ages), set[str]()
    run.mislead = conductor.asked
    run.tamper = together(watched(FIT, lambda site, tensors, facts: sent.update(tensors)), conductor.answered)
    record = completed(run)
    assert any(age >= 2 for entry in record.rounds for age in entry.late.values()), "site 3 is rounds behind"
    for name, value in plain.state.items():
        assert torch.equal(final(run)[name], value), name
    for name, trained in learners.items():
        here = next((run.root / name).rglob("local_state.safetensors"))
        kept, expected = load_tensors(here)[0], trained.local_state()[0]
        local = [key for key in expected if any(part in key for part in (ANCHOR, GENERIC, SPECIALISED))]
        assert local
        assert all(torch.equal(kept[key], expected[key]) for key in expected), name
    assert sent
    assert not any(SPECIALISED in name or ANCHOR in name for name in sent)
