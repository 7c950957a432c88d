# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 at one site: what travels, what a round does, which loss it tells, what the image is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.settings.site import SiteConfig
from medflare.in_process.loop import federate
from medflare.learners.optim import rate_factor
from medflare.learners.vit_gpt2.learner import ViTGPT2Learner, build
from medflare.learners.vit_gpt2.settings import METHOD
from medflare.models.padding import pad
from medflare.tasks.prediction_files import read_predictions
from medflare.tasks.reports.evaluation import split_loss
from site_builders import site_config

PART = {"layers": 1, "width": 32, "attention_heads": 2}
SMALL: dict[str, Any] = {
    "model": {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}},
    "optimiser": {"lr": 3e-3},
    "max_report_tokens": 30,
    "decoding": {"beams": 1, "max_new_tokens": 8},
    "eval_limit": 4,
}
PLAN = RoundPlan(round=0, rounds=4, steps=2)


def site(folder: Path, name: str = "site-1", split: dict[str, float] | None = None) -> SiteConfig:
    cohort = {"split": split, "columns": {"split": None}} if split else {}
    return site_config("manifest", folder, None, name, cohort)


@pytest.fixture
def make(small_hospital: Path) -> Any:
    def made(name: str = "site-1", split: dict[str, float] | None = None, **settings: Any) -> ViTGPT2Learner:
        learner = build(SMALL | settings, site(small_hospital, name, split), 0)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


def test_every_weight_travels_once(make: Any) -> None:
    assert not [name for name in make().shared_spec() if "lm_head" in name or "pooler" in name]


@pytest.mark.parametrize(
    ("plan", "images"),
    [({}, 2.0), ({"fraction": 1.0}, 1.0), ({"fraction": 0.5}, 0.5)],
)
def test_a_round_is_as_many_passes_as_asked(make: Any, plan: dict[str, float], images: float) -> None:
    learner = make(local_epochs=2)
    rows = learner._round_rows(RoundPlan(round=0, rounds=1, **plan))
    assert len(rows) == pytest.approx(images * len(learner.train_rows), abs=1)


def test_the_loss_for_l_fedavg_is_of_the_trained_model_on_own_validation_images(make: Any) -> None:
    learner = make()
    before = split_loss(learner, learner.samples.split_indices("val"))
    val_loss = learner.fit(PLAN).metrics["val_loss"]
    assert val_loss == split_loss(learner, learner.samples.split_indices("val")) != before
    assert learner.evaluate("val", RoundPlan(round=0, rounds=1, hints=RoundHints(loss_only=True))) == {
        "loss": val_loss
    }


def test_without_validation_images_no_loss_is_told(make: Any) -> None:
    learner = make(split={"train": 0.8, "val": 0, "test": 0.2})
    assert "val_loss" not in learner.fit(PLAN).metrics
    assert learner.evaluate("val", PLAN) == {}


def test_the_paper_preset_adds_nothing_that_is_not_printed(make: Any) -> None:
    paper = METHOD.resolve({"preset": "paper"})
    assert (paper.augment, paper.optimiser.schedule, paper.optimiser.clip_norm) == (False, "constant", None)
    assert (paper.optimiser.batch, paper.optimiser.lr, paper.optimiser.weight_decay) == (8, 5e-5, 0.01)
    assert (paper.local_epochs, paper.decoding.beams, paper.max_report_tokens) == (3, 4, 128)
    learner = make(preset="paper")
    assert [rate_factor(paper.optimiser.schedule, x, 0.0) for x in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    rows = learner.train_rows[:2]
    first, second = (learner._load(rows, torch.Generator().manual_seed(seed))[0] for seed in (0, 1))
    assert torch.equal(first, second)
    with pytest.raises(ConfigError, match=r"learning_rate: no such setting"):
        METHOD.resolve({"optimiser": {"learning_rate": 1}})


def test_the_final_test_writes_predictions_of_the_one_model(make: Any, tmp_path: Path) -> None:
    learner = make()
    records = learner.finish(RoundPlan(round=0, rounds=1, limit=3), tmp_path)
    assert [(item.adapter, item.studies) for item in records] == [("generic", 3)]
    assert {"bleu_4", "rouge_l", "label_f1"} <= set(records[0].metrics)
    written = read_predictions(tmp_path / records[0].predictions)
    rows = learner.samples.split_indices("test")[:3]
    assert [item.reference for item in written] == [learner.samples.reports[row] for row in rows]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["plausibility.safetensors", records[0].predictions]


def run(make: Any, rule: Any) -> tuple[list[dict[str, Update]], list[State]]:
    learners = {name: make(name) for name in ("site-1", "site-2", "site-3")}
    updates: list[dict[str, Update]] = []
    states: list[State] = [learners["site-1"].initial_shared()]

    def keep(number: int, state: State, got: Any) -> None:
        updates.append(dict(got))
        states.append({name: value.clone() for name, value in state.items()})

    federate(learners, rule, 1, lambda number: PLAN, on_round=keep)
    return updates, states


def test_krum_goes_on_from_one_sites_weights(make: Any) -> None:
    rule = make_rule("krum", {"allow_unsafe": True})
    updates, states = run(make, rule)
    (chosen,) = rule.report()["selected"]
    delta = updates[0][chosen].delta
    assert all(torch.allclose(states[1][n], states[0][n] + delta[n], atol=1e-6) for n in delta)
    assert rule.report()["byzantine_guarantee"] is False


def test_l_fedavg_weighs_by_the_losses_the_sites_report(make: Any) -> None:
    rule = make_rule("l_fedavg", {"omega": 0.0})
    updates, states = run(make, rule)
    inverse = {name: 1 / update.metrics["val_loss"] for name, update in updates[0].items()}
    assert rule.report()["weights"] == pytest.approx(
        {name: value / sum(inverse.values()) for name, value in inverse.items()}
    )
    name = "decoder.transformer.wte.weight"
    mean = sum(rule.report()["weights"][site] * update.delta[name] for site, update in updates[0].items())
    assert torch.allclose(states[1][name], states[0][name] + mean, atol=1e-6)


@pytest.mark.parametrize("source", ["server", "cross"])
def test_l_fedavg_weighs_by_losses_that_others_measure(make: Any, source: str) -> None:
    learners = {name: make(name) for name in ("site-1", "site-2")}
    judges = [make("server")] if source == "server" else list(learners.values())
    rule = make_rule("l_fedavg", {"loss_source": source})
    before = learners["site-1"].initial_shared()
    updates: dict[str, Update] = {}
    federate(
        learners,
        rule,
        1,
        lambda r: PLAN,
        on_round=lambda number, state, given: updates.update(given),
        judge=judges[0] if source == "server" else None,
    )
    for name, update in updates.items():
        measured = []
        for judge in judges:
            judge.load_shared({n: v + update.delta[n] for n, v in before.items()})
            measured.append(split_loss(judge, judge.samples.split_indices("val")))
        assert rule.report()["losses"][name] == pytest.approx(sum(measured) / len(measured), rel=1e-5)


def test_it_learns_which_report_belongs_to_which_image(make: Any) -> None:
    learner = make(
        augment=False,
        optimiser={"lr": 1e-2, "warmup": 0.1, "weight_decay": 0.0},
        model=SMALL["model"] | {"dropout": 0.0},
    )
    learner.train_rows = rows = learner.train_rows[:8]
    learner.order.size = 8
    first = split_loss(learner, rows)
    learner.fit(RoundPlan(round=0, rounds=1, steps=150))
    expected = split_loss(learner, rows)
    assert expected < first / 50

    ids, targets = pad([learner.tokens[row] for row in rows])
    seen, _, _ = learner._load(rows, torch.Generator())
    with torch.no_grad():
        swapped = [float(learner.model.report_loss(seen.roll(k, 0), ids, targets)) for k in (1, 3, 5)]
    assert min(swapped) > 5 * expected
