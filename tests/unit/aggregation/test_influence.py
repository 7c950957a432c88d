# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+: influence weights, scored by the server or by the sites."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from influence_formula import influence_weights
from medflare.aggregation.capabilities import factor_clip, round_hints
from medflare.aggregation.influence import Influence
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.learners.text_task.influence import reference_loss, self_influence

EXAMPLES, LOSSES = (100, 200, 300), (0.5, 0.9, 0.7)
DELTAS = (1.0, -2.0, 4.0)
ZERO = {"w": torch.zeros(1, dtype=torch.float64)}


def updates(factors: tuple[float, ...] = (1.0, 1.0, 1.0)) -> dict[str, Update]:
    return {
        f"s{i}": Update(delta={"w": torch.tensor([d], dtype=torch.float64)}, examples=n, factor=f)
        for i, (d, n, f) in enumerate(zip(DELTAS, EXAMPLES, factors, strict=True))
    }


def served(losses: tuple[float, ...], **settings: Any) -> Influence:
    """A round in server mode in which site s_i's candidate has loss `losses[i]`."""
    rule = Influence(mode="server", **settings)
    rule.set_score(lambda site, state: losses[int(site[1:])])
    rule.begin(ZERO)
    for site, update in updates().items():
        rule.add(site, update)
    return rule


def asked(losses: tuple[float, ...], reference: float = 0.8, **settings: Any) -> Influence:
    """The same in client mode: each site scores itself."""
    rule = Influence(mode="client", **settings)
    hints = rule.round_hints().influence
    factors = tuple(self_influence(x, reference, hints.temperature, hints.clip) for x in losses)
    rule.begin(ZERO)
    for site, update in updates(factors).items():
        rule.add(site, update)
    return rule


def test_vector_1_influence_and_weights() -> None:
    for use_data_size, expected in (
        (False, [0.401760, 0.269307, 0.328933]),
        (True, [0.208471, 0.279484, 0.512045]),
    ):
        rule = served(LOSSES, use_data_size=use_data_size)
        rule.finish()
        assert list(rule.report()["weights"].values()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((0.10, 0.14, 0.12), (0.340, 0.327, 0.333)), ((120.0, 150.0, 140.0), (1.0, 0.0, 0.0))],
)
def test_losses_per_token_hardly_tell_sites_apart_and_sums_take_all(losses: Any, expected: Any) -> None:
    assert influence_weights(losses, (1, 1, 1)) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("run", [served, asked])
@pytest.mark.parametrize("use_data_size", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_round_is_the_mean_with_influence_weights(
    run: Any, use_data_size: bool, temperature: float
) -> None:
    rule = run(LOSSES, temperature=temperature, use_data_size=use_data_size)
    weights = influence_weights(LOSSES, EXAMPLES, temperature, use_data_size)
    expected = sum(w * d for w, d in zip(weights, DELTAS, strict=True))
    assert rule.finish()["w"].item() == pytest.approx(expected, rel=1e-12)
    assert list(rule.report()["weights"].values()) == pytest.approx(weights, rel=1e-12)


@given(st.lists(st.floats(0.0, 1.5), min_size=3, max_size=3), st.floats(0.0, 1.5))
def test_both_modes_agree_to_rounding_when_nothing_is_clipped(losses: list[float], reference: float) -> None:
    server, client = served(tuple(losses)).finish(), asked(tuple(losses), reference).finish()
    assert torch.allclose(server["w"], client["w"], rtol=1e-12, atol=1e-12)


@given(st.permutations([120.0, 150.0, 140.0, 1e-3, 800.0]))
def test_the_running_sum_equals_the_batch_whatever_the_order_of_losses(losses: list[float]) -> None:
    rule = Influence(mode="server")
    rule.set_score(lambda site, state: losses[int(site)])
    rule.begin(ZERO)
    for i in range(5):
        rule.add(str(i), Update(delta={"w": torch.tensor([float(i)], dtype=torch.float64)}, examples=i + 1))
    weights = influence_weights(losses, range(1, 6))
    expected = sum(w * i for i, w in enumerate(weights))
    assert rule.finish()["w"].item() == pytest.approx(expected, rel=1e-12)


def test_extreme_losses_do_not_overflow() -> None:
    rule = served((120.0, 150.0, 140.0))
    assert rule.finish()["w"].item() == pytest.approx(DELTAS[0], rel=1e-7)
    assert rule.report()["losses"] == {"s0": 120.0, "s1": 150.0, "s2": 140.0}


def test_the_scorer_sees_the_candidate_in_the_dtype_of_the_state() -> None:
    seen: list[State] = []
    rule = Influence(mode="server")
    rule.set_score(lambda site, state: seen.append(state) or 1.0)  # type: ignore[func-returns-value]
    rule.begin({"w": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)})
    rule.add("a", Update(delta={"w": torch.tensor([0.5, -1.0])}, examples=3))
    assert torch.equal(seen[0]["w"], torch.tensor([1.5, 1.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_costs_only_that_site(loss: float) -> None:
    rule = Influence(mode="server")
    rule.set_score(lambda site, state: loss if site == "s1" else 0.5)
    rule.begin(ZERO)
    rule.add("s0", updates()["s0"])
    with pytest.raises(UpdateError, match="finite"):
        rule.add("s1", updates()["s1"])
    assert rule.finish()["w"].item() == DELTAS[0]
    assert list(rule.report()["weights"]) == ["s0"]


def test_a_site_cannot_promote_itself_beyond_the_clip() -> None:
    assert self_influence(-1e9, 0.8, clip=2.0) == pytest.approx(math.e**2)
    assert self_influence(1e9, 0.8, clip=2.0) == pytest.approx(math.e**-2)
    with pytest.raises(UpdateError, match="nan"):
        self_influence(math.nan, 0.8)


def test_modes_declare_what_they_need() -> None:
    server, client = Influence(mode="server"), Influence(mode="client", clip=1.5)
    assert (server.facts.needs, factor_clip(server), round_hints(server).to_json()) == ("individual", 0.0, {})
    assert (client.facts.needs, factor_clip(client)) == ("sum", 1.5)
    hints = {"temperature": 1.0, "clip": 1.5, "use_data_size": True, "reference": None}
    assert client.round_hints().to_json() == {"influence": hints}


def test_server_mode_without_validation_notes_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r'rule_settings: \{"mode": "client"\}'):
        Influence(mode="server").begin(ZERO)


def test_after_the_first_round_sites_measure_from_what_all_told() -> None:
    """A base model far above its trained losses must not clip every site to one factor (ML-15)."""
    rule = Influence(mode="client", temperature=0.1, clip=2.0)
    assert rule.round_hints().influence.reference is None
    for losses in ((0.08, 0.09, 0.21), (0.07, 0.08, 0.20)):
        hint = rule.round_hints().influence
        factors = [self_influence(x, reference_loss(hint, lambda: 0.5), 0.1, 2.0) for x in losses]
        rule.begin(ZERO)
        for (site, update), loss, factor in zip(updates().items(), losses, factors, strict=True):
            update.metrics["shared_loss"], update.factor = loss, factor
            rule.add(site, update)
            assert rule.round_hints().influence == hint  # the same for every site of a round
        rule.finish()
    assert rule.report()["losses"] == {"s0": 0.07, "s1": 0.08, "s2": 0.20}
    expected = influence_weights((0.07, 0.08, 0.20), EXAMPLES, 0.1)
    assert list(rule.report()["weights"].values()) == pytest.approx(expected, rel=1e-4)
    restored = Influence(mode="client", temperature=0.1)
    restored.load_state_dict(rule.state_dict())
    assert restored.round_hints() == rule.round_hints()
