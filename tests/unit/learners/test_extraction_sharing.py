# SPDX-License-Identifier: Apache-2.0
"""Which factors travel, what becomes of them in a federation, and what a result folder says (1.4, 7.8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from extraction_sites import SMALL, logits, make, site
from peft import PeftModel
from safetensors.torch import load_file

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.in_process.loop import federate
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import seeded_a
from medflare.models.backbone import load_backbone
from site_builders import write_result

A, B = ".lora_A.weight", ".lora_B.weight"
SCALE = SMALL["lora"]["lora_alpha"] / SMALL["lora"]["rank"]
NAMES = ("site-1", "site-2")
MODES = {
    "factors": "weighted_mean",
    "freeze_a": "freeze_a",
    "fedsa": "weighted_mean",
    "stack": "lora_stack",
    "product_svd": "lora_product_svd",
}
"""Mode of sharing LoRA factors -> aggregation rule."""


@dataclass
class Run:
    """Two rounds of one step at two sites: what was broadcast, what came back, and the last state."""

    mode: str
    learners: dict[str, ExtractionLearner]
    received: list[State]
    updates: list[dict[str, Update]]
    own_b: dict[str, State]
    state: State

    def weights(self, number: int) -> dict[str, float]:
        counts = {name: update.examples for name, update in self.updates[number].items()}
        return {name: count / sum(counts.values()) for name, count in counts.items()}

    def product(self, number: int, name: str, stem: str) -> torch.Tensor:
        """B A of one site after training."""
        state, delta = self.received[number], self.updates[number][name].delta
        a, b = stem + A, stem + B
        first = (
            state[a] + delta[a] if a in delta else self.learners[name].model.adapters.state(GENERIC)[_own(a)]
        )
        return (state[b] + delta[b]) @ first


def _own(name: str) -> str:
    return name.removeprefix("adapter.")


def sharing(mode: str) -> str:
    return "factors" if mode == "product_svd" else mode


def federated(notes: Path, mode: str) -> Run:
    learners = {name: make(site(notes, name), sharing=sharing(mode)) for name in NAMES}
    start = learners["site-1"].initial_shared()
    run = Run(mode, learners, [start], [], {}, {})

    def keep(number: int, state: State, updates: Any) -> None:
        run.received.append({n: t.clone() for n, t in state.items()})
        run.updates.append(dict(updates))
        run.own_b = {n: learner.model.adapters.state(GENERIC) for n, learner in learners.items()}

    rule = make_rule(MODES[mode], {})
    run.state = federate(learners, rule, 2, lambda r: RoundPlan(round=r, rounds=2, steps=1), on_round=keep)
    for learner in learners.values():
        learner.load_shared(run.state)
    return run


@pytest.fixture(scope="module")
def runs(notes: Path) -> dict[str, Run]:
    return {mode: federated(notes, mode) for mode in MODES}


def stems(run: Run) -> list[str]:
    return sorted({n.removesuffix(A).removesuffix(B) for n in run.updates[0]["site-1"].delta})


# ---- what travels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "ends"),
    [("factors", {A, B}), ("freeze_a", {B}), ("fedsa", {A}), ("stack", {A, B}), ("product_svd", {A, B})],
)
def test_each_mode_declares_and_sends_its_factors(runs: dict[str, Run], mode: str, ends: set[str]) -> None:
    run = runs[mode]
    for learner in run.learners.values():
        assert {name[name.index(".lora_") :] for name in learner.shared_spec()} == ends
        own, _ = learner.local_state()
        assert {name[name.index(".lora_") :] for name in own} == {A, B} - ends
    for updates in run.updates:
        assert all(
            set(update.delta) == set(run.learners["site-1"].shared_spec()) for update in updates.values()
        )


def test_freeze_a_makes_a_from_the_seed_at_every_site_and_never_changes_it(runs: dict[str, Run]) -> None:
    run = runs["freeze_a"]
    for learner in run.learners.values():
        for name, value in learner.model.adapters.state(GENERIC).items():
            if name.endswith(A):
                assert torch.equal(value, seeded_a(name, tuple(value.shape), learner.seed))


@pytest.mark.parametrize("number", [0, 1])
def test_freeze_a_aggregates_the_products_exactly(runs: dict[str, Run], number: int) -> None:
    run = runs["freeze_a"]
    for stem in stems(run):
        expected = sum(w * run.product(number, name, stem) for name, w in run.weights(number).items())
        a = run.learners["site-1"].model.adapters.state(GENERIC)[_own(stem + A)]
        torch.testing.assert_close(run.received[number + 1][stem + B] @ a, expected, atol=1e-8, rtol=1e-5)


def test_averaging_factors_is_not_averaging_products(runs: dict[str, Run]) -> None:
    """ML-9: from the second round on, when both sites' B differ from zero and their A from each other."""
    run = runs["factors"]
    errors = []
    for stem in stems(run):
        expected = sum(w * run.product(1, name, stem) for name, w in run.weights(1).items())
        actual = run.state[stem + B] @ run.state[stem + A]
        errors.append(float((actual - expected).norm() / expected.norm()))
    assert max(errors) > 1e-4


def test_vector_12_fedsa_keeps_b_and_shares_a(runs: dict[str, Run]) -> None:
    run = runs["fedsa"]
    one, two = (run.learners[name].model.adapters.state(GENERIC) for name in NAMES)
    for name in one:
        if name.endswith(A):
            assert torch.equal(one[name], two[name])
            assert torch.equal(one[name], run.state["adapter." + name])
        else:
            assert torch.equal(one[name], run.own_b["site-1"][name])
            assert torch.equal(two[name], run.own_b["site-2"][name])
            assert one[name].any()
            assert not torch.equal(one[name], two[name])


def test_fedsa_is_tested_as_the_sites_own_adapter(runs: dict[str, Run], tmp_path: Path) -> None:
    learner = runs["fedsa"].learners["site-2"]
    record = learner.finish(RoundPlan(round=2, rounds=2, limit=1), tmp_path)[0]
    assert (record.adapter, record.predictions) == ("personalised", "predictions_personalised.jsonl")
    local_factors = load_file(tmp_path / "personalised/adapter_model.safetensors")
    assert all(
        torch.equal(value, local_factors[name])
        for name, value in learner.model.adapters.state(GENERIC).items()
    )
    opened = PeftModel.from_pretrained(_base(), tmp_path / "personalised")
    learner.use()
    torch.testing.assert_close(logits(opened, learner), logits(learner.model.backbone.model, learner))


def test_a_server_cannot_score_what_stays_at_the_sites(runs: dict[str, Run]) -> None:
    plan = RoundPlan(round=0, rounds=1, hints=RoundHints(loss_only=True))
    with pytest.raises(ConfigError, match=r"(?s)fedsa.*\"mode\": \"client\""):
        runs["fedsa"].learners["site-1"].evaluate("val", plan)


# ---- stack ------------------------------------------------------------------------------------------------


def summed(run: Run, stem: str) -> torch.Tensor:
    """Σ over rounds of Σ_k w_k B_k A_k: every round of `stack` starts from B = 0."""
    rounds = range(len(run.updates))
    return sum(w * run.product(r, name, stem) for r in rounds for name, w in run.weights(r).items())


def test_stack_merges_the_sum_of_all_products(runs: dict[str, Run]) -> None:
    run = runs["stack"]
    for stem in stems(run):
        merged = "merged." + _own(stem)
        assert run.state[merged + A].shape[0] == 2 * 2 * 2, "rank 2 of two sites in two rounds"
        actual = run.state[merged + B] @ run.state[merged + A]
        torch.testing.assert_close(actual, summed(run, stem), atol=1e-8, rtol=1e-5)
        assert not run.state[stem + B].any()
        assert torch.equal(run.state[stem + A], run.received[0][stem + A])


def test_a_site_computes_as_if_the_sum_were_in_the_base_weights(runs: dict[str, Run]) -> None:
    run, base = runs["stack"], _base()
    with torch.no_grad():
        for stem in stems(run):
            layer = base.get_submodule(_own(stem).removeprefix("base_model.model."))
            layer.weight += SCALE * summed(run, stem)
    for learner in run.learners.values():
        learner.use()
        result = logits(learner.model.backbone.model, learner)
        torch.testing.assert_close(result, logits(base, learner), atol=2e-4, rtol=1e-4)
        assert (result - logits(_base(), learner)).abs().max() > 0.01


def test_what_was_merged_is_gone_with_a_state_that_holds_nothing_merged(runs: dict[str, Run]) -> None:
    run = runs["stack"]
    learner = run.learners["site-1"]
    learner.load_shared(run.received[0])
    torch.testing.assert_close(logits(learner.model.backbone.model, learner), logits(_base(), learner))
    learner.load_shared(run.state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n, t: {n: torch.full_like(t, torch.inf)}, "not finite"),
        (lambda n, t: {n: t[:, :-1]}, "has shape"),
        (lambda n, t: {n + ".x": t}, "unexpected tensor 'merged"),
    ],
)
def test_merged_factors_that_do_not_fit_are_refused(runs: dict[str, Run], change: Any, message: str) -> None:
    run = runs["stack"]
    name = next(n for n in run.state if n.startswith("merged.") and n.endswith(B))
    with pytest.raises(UpdateError, match=message):
        run.learners["site-1"].load_shared({**run.state, **change(name, run.state[name])})


@pytest.mark.parametrize("rank", [0, 5_000])
def test_a_server_cannot_fill_a_sites_memory_with_one_long_factor(runs: dict[str, Run], rank: int) -> None:
    run = runs["stack"]
    a = next(n for n in run.state if n.startswith("merged.") and n.endswith(A))
    b = a.removesuffix(A) + B
    long = {a: torch.ones(rank, run.state[a].shape[1]), b: torch.ones(run.state[b].shape[0], rank)}
    with pytest.raises(UpdateError, match=f"has rank {rank}, expected 1 to"):
        run.learners["site-1"].load_shared({**run.state, **long})


# ---- what is written --------------------------------------------------------------------------------------


def _base() -> Any:
    return load_backbone(None, "fp32", "cpu", "notes_decoder").model


@pytest.mark.parametrize("mode", MODES)
def test_peft_opens_the_result_and_answers_as_a_site_does(
    runs: dict[str, Run], notes: Path, mode: str, tmp_path: Path
) -> None:
    run = runs[mode]
    folder = write_result(tmp_path, run.learners["site-1"], run.state, sites=2, rounds=2)
    opened = PeftModel.from_pretrained(_base(), folder)
    newcomer = make(site(notes, "site-1"), sharing=sharing(mode))
    newcomer.load_shared(run.state)
    result = logits(opened, newcomer)
    torch.testing.assert_close(result, logits(newcomer.model.backbone.model, newcomer), atol=2e-4, rtol=1e-4)
    moved = (result - logits(_base(), newcomer)).abs().max()
    assert (moved == 0) if mode == "fedsa" else (moved > 0.01), (
        "without a B of its own a hospital starts at 0"
    )
