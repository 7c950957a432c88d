# SPDX-License-Identifier: Apache-2.0
"""FedTAR on synthetic visits through controller and executors: equal to one process, masked to rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_equality import assert_close, real_learners, train
from fed_harness import SITES, Federation, Make, completed, events, final
from fed_real import real_federation, take_turns

from medflare.aggregation import make_rule
from medflare.federation.server.controller import TemporalRoundsController
from medflare.in_process.temporal_loop import agree_on_mixture
from medflare.learners.fedtar import learner
from medflare.learners.fedtar.learner import FedTARLearner
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.reporting.page import write_page
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import write_follow_up

VISITS, STEPS, SEED = 3, 2, 5
MIXTURE = {"source": "federated", "components": 4, "least_patients": 2, "iterations": 3}
TEMPORAL = {"visits": VISITS, "alpha_mode": "beta_softmax", "lr": 0.05}
SETTINGS: dict[str, Any] = {
    "visits": VISITS,
    "mixture": MIXTURE,
    "model": {
        "encoder": {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2},
        "lora": {"rank": 2, "lora_alpha": 4, "targets": ["q_proj", "v_proj"]},
    },
    "patient": {"width": 4, "rank": 2, "lora_alpha": 4},
    "batch": 4,
    "lr": 3e-3,
    "max_report_tokens": 24,
    "decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0, "repetition_penalty": 1.0},
    "eval_batch": 8,
    "eval_limit": 1,
}
BASELINE = SETTINGS | {"variant": "pooled_baseline"}


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, dict[str, Any]]:
    """Site -> its settings; nobody at site-2 has a second visit."""
    folder = tmp_path_factory.mktemp("patients")
    for name, hospital in zip(SITES, DEMO_HOSPITALS, strict=True):
        manifest = write_follow_up(hospital, folder / name, 12, VISITS, size=32)
        rows = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [row for row in rows if name != "site-2" or json.loads(row)["visit"] != 2]
        manifest.write_text("".join(kept), encoding="utf-8")
    return {
        name: {
            "cohort": {
                "format": "manifest",
                "root": str(folder / name),
                "visits": {"order": "visit"},
                "split": {"train": 0.6, "val": 0.2, "test": 0.2},
                "columns": {"split": None},
            },
            "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
            "device": "cpu",
            "policy": {"min_sites": 3, "train_losses": True},
        }
        for name in SITES
    }


@pytest.fixture
def fedtar(patients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Federations of two rounds whose sites are threads and take turns: randomness is the process's."""
    take_turns(monkeypatch, (FedTARLearner, "fit"), (learner, "open_model"))
    monkeypatch.setattr(learner, "finish_site", lambda *_: [])  # scores at the end have tests of their own

    def make(
        rule: str = "temporal",
        rule_settings: dict[str, Any] = TEMPORAL,
        settings: dict[str, Any] = SETTINGS,
        **controller: Any,
    ) -> Federation:
        return real_federation(
            tmp_path,
            patients,
            method="fedtar",
            settings=settings,
            rule={"rule": rule, "rule_settings": rule_settings},
            controller={
                "num_rounds": 2,
                "steps": STEPS,
                "visits": VISITS,
                "seed": SEED,
                "mixture": MIXTURE if settings is SETTINGS else None,
                **controller,
            },
            flow_class=TemporalRoundsController,
        )

    return make


def test_a_run_in_flare_is_the_run_in_one_process(fedtar: Make) -> None:
    run = fedtar()
    record = completed(run)
    place = [(event["round"], event["visit"]) for event in events(run, "weighed")]
    assert sorted(set(place)) == [(number, visit) for number in range(2) for visit in range(VISITS)]
    learners = real_learners(run, SEED)
    profiles = {name: made.patients for name, made in learners.items()}
    server = agree_on_mixture(profiles, MixtureSettings(**MIXTURE), 2, SEED)
    plain = train(learners, make_rule("temporal", TEMPORAL), 2, visits=VISITS, steps=STEPS, seed=SEED)
    assert_close(final(run), plain.state, 0.0)
    assert record.preparation["mixture"] == server.report()
    assert record.rounds[-1].rule == plain.rule.report()
    assert record.rounds[1].rule["alpha"] != record.rounds[0].rule["alpha"]
    second = record.rounds[0].exchanges[1]
    assert second.accepted["site-2"] == 0 < second.accepted["site-1"]

    kept = json.loads((run.folder / "result/adapter/longitudinal_generator.json").read_text(encoding="utf-8"))
    assert kept["mixture"]["means"] == server.mixture.means.tolist()
    assert "val_loss" in record.rounds[-1].mean
    page = write_page(run.folder).read_text(encoding="utf-8")
    assert 'id="visits"' in page
    assert 'id="preparation"' in page


@pytest.mark.parametrize(
    ("name", "settings"), [("scaffold", {}), ("drfa", {"batch": 4}), ("fedyogi", {"lr": 1e-3})]
)
def test_a_sequential_baseline_is_the_run_in_one_process(
    fedtar: Make, name: str, settings: dict[str, Any]
) -> None:
    run = fedtar(name, settings, BASELINE)
    completed(run)
    rule, learners = make_rule(name, settings), real_learners(run, SEED)
    plain = train(learners, rule, 2, visits=VISITS, steps=STEPS, seed=SEED)
    assert_close(final(run), plain.state, 0.0)


def test_a_masked_run_is_the_plain_one_to_rounding(fedtar: Make) -> None:
    plain, masked = fedtar(num_rounds=1), fedtar(num_rounds=1, protection="masking")
    first, record = completed(plain), completed(masked)
    expected = final(plain)
    apart = torch.cat([(value - expected[name]).abs().flatten() for name, value in final(masked).items()])
    assert float(apart.quantile(0.99)) < 1e-5
    assert float(apart.max()) < 1e-3  # AdamW's first steps turn where a gradient is next to nothing
    assert record.rounds[0].exchanges[1].protection["weight"] == sum(
        first.rounds[0].exchanges[1].accepted.values()
    )
    assert record.preparation["mixture"]["likelihoods"] == pytest.approx(
        first.preparation["mixture"]["likelihoods"], abs=1e-4
    )
