# SPDX-License-Identifier: Apache-2.0
"""FedProx, SCAFFOLD and DRFA with every method, on real learners with small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fedtar_sites import SMALL, site, write_visits

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import round_hints
from medflare.core.hints import RoundHints
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.settings.site import SiteConfig
from medflare.in_process.loop import federate
from medflare.learners.client_terms import CLIENT_TERMS, requested_sums
from medflare.learners.registry import METHODS, build_learner, task_of
from medflare.synthetic.knowledge import write_questions_demo, write_summaries_demo
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

PART = {"layers": 1, "width": 32, "attention_heads": 2}
TEXT: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "optimiser": {"batch": 2, "lr": 2e-3, "accumulate": 2},
    "max_tokens": 400,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedmrg": {
        "model": {
            "encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
            "lora": {"rank": 2, "lora_alpha": 8},
        },
        "batch": 8,
        "max_report_tokens": 30,
    },
    "fed_medlora": {
        "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
        "optimiser": {"batch": 2, "lr": 2e-3, "accumulate": 2},
        "max_tokens": 500,
    },
    "fedtar": {k: v for k, v in SMALL.items() if k not in ("patient", "mixture")}
    | {"variant": "pooled_baseline"},
    "question_answering": TEXT,
    "summarisation": TEXT,
    "token_classification": {"optimiser": {"batch": 8, "lr": 1e-3}, "eval_batch": 32},
    "fedvit_gpt2": {
        "model": {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}},
        "optimiser": {"lr": 3e-3},
        "max_report_tokens": 30,
    },
}
Make = Callable[..., Learner]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for number in (1, 2):
        write_notes_hospital(NOTE_HOSPITALS[number - 1], folder / f"site-{number}", 12, "jsonl")
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`questions` and `summaries` of two hospitals."""
    folder = tmp_path_factory.mktemp("texts")
    write_questions_demo(folder / "questions", 2, questions=12, diseases=2, groups=2)
    write_summaries_demo(folder / "summaries", 2, reports=14)
    return folder


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visits")
    for number in (1, 2):
        write_visits(folder / f"site-{number}", number - 1)
    return folder


@pytest.fixture
def make(
    notes: Path, texts: Path, visits: Path, small_hospital: Path, tiny_backbone: Path, tiny_encoder: Path
) -> Make:
    """A learner of a method at site-1 or site-2 that has loaded its own initial state."""
    adapted = ("fedmrg", "fed_medlora", "fedtar", "question_answering", "summarisation")
    models = {**dict.fromkeys(adapted, tiny_backbone), "token_classification": tiny_encoder}

    def cohort_of(method: str, name: str) -> dict[str, Any]:
        kind = task_of(method).reads
        if kind == "visits":
            own = site(visits / name, None).cohort[0]
            return own.model_dump(mode="json", exclude_unset=True)
        if kind == "studies":
            return {"format": "manifest", "root": str(small_hospital)}
        return {"format": f"{kind}_jsonl", "root": str((notes if kind == "notes" else texts / kind) / name)}

    def made(method: str, name: str = "site-1", **settings: Any) -> Learner:
        cohort = cohort_of(method, name)
        folder = {"folder": str(models[method])} if method in models else {}
        config = SiteConfig.model_validate(
            {"name": name, "cohort": cohort, "backbone": folder | {"precision": "fp32"}, "device": "cpu"}
        )
        learner = build_learner(method, SETTINGS[method] | settings, config, 0)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


@pytest.fixture(params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plan(number: int = 0, **hints: Any) -> RoundPlan:
    place = {"site_index": 0, "sites": 1, "summed": [0]}
    return RoundPlan(round=number, rounds=3, steps=2, hints=RoundHints.from_json(hints | place))


def size(state: State) -> float:
    return float(torch.cat([v.float().flatten() for v in state.values()]).norm())


def same(one: Update, two: Update) -> bool:
    return all(torch.equal(one.delta[name], two.delta[name]) for name in two.delta)


def test_every_method_is_here() -> None:
    assert set(SETTINGS) == set(METHODS)


def test_without_mu_an_update_is_the_same_to_the_last_bit_and_with_it_not(make: Make, method: str) -> None:
    plain, none, held = (make(method).fit(plan(**hints)) for hints in ({}, {"fedprox": {"mu": 0.0}}, HELD))
    assert same(none, plain)
    assert not same(held, plain)
    assert held.metrics["drift"] > 0
    assert (held.sums.keys(), held.factor) == (plain.sums.keys(), 1.0)


HELD = {"fedprox": {"mu": 100.0}}
DRAWN = {"importance": {"weights": {}, "largest": 2.0}}
"""What the rules that draw sites tell those they drew."""


@pytest.mark.parametrize("name", sorted(CLIENT_TERMS))
def test_an_update_holds_the_sums_that_were_declared(make: Make, method: str, name: str) -> None:
    learner = make(method)
    hints = DRAWN if name == "importance" else round_hints(make_rule(name, {})).to_json()
    spec = learner.sums_spec(1) | requested_sums(learner, RoundHints.from_json(hints))
    update = learner.fit(plan(**hints))
    assert {n: (tuple(t.shape), t.dtype) for n, t in update.sums.items()} == spec
    assert all(torch.isfinite(t).all() for t in update.sums.values())
    if name == "scaffold":
        learned = {
            n.removeprefix("control.") for n, t in update.sums.items() if n.startswith("control.") and t.any()
        }
        moved = {n for n, t in update.delta.items() if t.any() and "running" not in n and "tracked" not in n}
        assert moved == learned
        assert update.metrics["control_lr"] > 0
    if name == "drfa":
        whole = {n.removeprefix("snapshot."): t for n, t in update.sums.items() if n.startswith("snapshot.")}
        assert all(torch.allclose(whole[n], t.float(), atol=1e-6) for n, t in update.delta.items())


def test_control_variates_survive_a_restart_and_change_the_next_round(make: Make, method: str) -> None:
    hints = {"scaffold": {"control": "gradients"}}
    learner, again, fresh = make(method), make(method), make(method)
    first = learner.fit(plan(0, **hints))
    tensors, values = learner.local_state()
    again.load_local_state(tensors, values)
    totals = {n: t for n, t in first.sums.items() if n.startswith("control.")}
    start = {n: t.clone() for n, t in fresh.initial_shared().items()}
    second = []
    for each in (learner, again):
        each.load_shared(start)
        shifted = plan(1, **hints)
        given = RoundPlan(
            round=1, rounds=3, steps=2, hints=shifted.hints, totals={n: 3 * t for n, t in totals.items()}
        )
        second.append(each.fit(given))
    assert same(*second)
    assert second[0].metrics["control_shift"] == pytest.approx(2 * size(totals), rel=1e-4)
    assert all(torch.equal(second[0].sums[n], second[1].sums[n]) for n in second[0].sums)


def test_a_probe_is_the_loss_alone_on_so_many_training_examples(make: Make, method: str) -> None:
    learner = make(method)
    few = [learner.evaluate("train", plan(r, probe=3)) for r in (0, 0, 1)]
    assert set(few[0]) == {"loss"}
    assert few[0] == few[1] != few[2]
    every = learner.evaluate("train", plan(probe=10**6))["loss"]
    assert every == pytest.approx(learner.evaluate("train", plan(probe=10**5))["loss"])
    assert every > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedprox", {"mu": 0.01}),
        ("scaffold", {}),
        ("drfa", {"m": 2}),
    ],
)
def test_the_loss_of_a_tagger_falls(make: Make, name: str, settings: dict[str, Any]) -> None:
    learners = {site: make("token_classification", site) for site in ("site-1", "site-2")}
    start = learners["site-1"].initial_shared()

    def loss(state: State) -> float:
        found = []
        for learner in learners.values():
            learner.load_shared(state)
            found.append(learner.evaluate("val", plan(loss_only=True))["loss"])
        return sum(found) / len(found)

    before, rule = loss(start), make_rule(name, settings)
    end = federate(learners, rule, 4, lambda r: RoundPlan(round=r, rounds=4, steps=6))
    assert loss(end) < 0.8 * before
