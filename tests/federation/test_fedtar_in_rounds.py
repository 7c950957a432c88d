# SPDX-License-Identifier: Apache-2.0
"""FedTAR on synthetic visits through controller and executors: equal to one process, masked to rounding."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import Federation, completed, final

from medflare.aggregation import make_rule
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.data.settings.site import load_site
from medflare.federation.server.controller import TemporalRoundsController
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits, visit_by_visit
from medflare.learners.fedtar import learner
from medflare.learners.fedtar.learner import FedTARLearner, build
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.reporting.page import write_page
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import write_follow_up

SITES = ("site-1", "site-2", "site-3")
VISITS, STEPS = 3, 2
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
Make = Callable[..., Federation]


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
            "policy": {"min_sites": 3},
        }
        for name in SITES
    }


@pytest.fixture
def fedtar(patients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Federations of two rounds whose sites are threads and take turns: randomness is the process's."""
    turn = threading.Lock()

    def one_at_a_time(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def guarded(*args: Any) -> Any:
            with turn:
                return original(*args)

        monkeypatch.setattr(owner, name, guarded)

    one_at_a_time(FedTARLearner, "fit")
    one_at_a_time(learner, "open_model")
    monkeypatch.setattr(learner, "finish_site", lambda *_: [])  # scores at the end have tests of their own

    def make(
        rule: str = "temporal",
        rule_settings: dict[str, Any] = TEMPORAL,
        settings: dict[str, Any] = SETTINGS,
        **controller: Any,
    ) -> Federation:
        root = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        for name, config in patients.items():
            local = root / name / "local"
            local.mkdir(parents=True)
            (local / "site.yaml").write_text(json.dumps(config), encoding="utf-8")
        return Federation(
            root=root,
            method="fedtar",
            toy=settings,
            sites=SITES,
            rule={"rule": rule, "rule_settings": rule_settings},
            controller={
                "num_rounds": 2,
                "steps": STEPS,
                "visits": VISITS,
                "seed": 5,
                "mixture": MIXTURE if settings is SETTINGS else None,
                **controller,
            },
            flow_class=TemporalRoundsController,
            timeout=240,
        )

    return make


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=2 * VISITS, steps=STEPS, seed=5)


def learners(run: Federation, settings: dict[str, Any]) -> dict[str, FedTARLearner]:
    """The same sites in this process."""
    return {
        name: build(settings, load_site(run.root / name / "local/site.yaml", name), 5, None) for name in SITES
    }


def same(one: State, other: State) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_in_flare_is_the_run_in_one_process(fedtar: Make) -> None:
    run = fedtar()
    record = completed(run)
    alone, rule = learners(run, SETTINGS), make_rule("temporal", TEMPORAL)
    server = agree_on_mixture(alone, MixtureSettings(**MIXTURE), 2, 5)
    assert same(final(run), federate_visits(alone, rule, 2, plan))
    assert record.preparation["mixture"] == server.report()
    assert record.rounds[-1].rule == rule.report()
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
    rule = make_rule(name, settings)
    assert same(final(run), federate(learners(run, BASELINE), rule, 2 * VISITS, visit_by_visit(plan, VISITS)))


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
