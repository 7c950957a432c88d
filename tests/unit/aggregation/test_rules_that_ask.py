# SPDX-License-Identifier: Apache-2.0
"""FedProx, SCAFFOLD and DRFA at the server: hints, control variates, λ, draws, the simplex."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from medflare.aggregation import make_rule
from medflare.aggregation.base import SiteWeight
from medflare.aggregation.drfa import Drfa, onto_simplex
from medflare.aggregation.fedprox import FedProx
from medflare.aggregation.scaffold import Scaffold
from medflare.core.hints import ControlVariatesHint
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.run_state import RunState, load_state, save_state

EXAMPLES = {"a": 60, "b": 30, "c": 10}
STATE: State = {"w": torch.zeros(2), "n": torch.tensor(4)}


def update(value: float, examples: int = 10, **more: Any) -> Update:
    return Update(delta={"w": torch.full((2,), value), "n": torch.tensor(2)}, examples=examples, **more)


def kept(rule: Any, folder: Path) -> dict[str, Any]:
    """A rule's state as it comes back from disk."""
    save_state(folder, RunState(exchanges_done=1, shared=STATE, rule=rule.state_dict()))
    return load_state(folder).rule


def ready(**settings: Any) -> Drfa:
    """DRFA that drew its sites for round 0 and began it."""
    rule = Drfa(**settings)
    rule.sample_clients(0, 5, EXAMPLES, list(EXAMPLES))
    rule.begin(STATE)
    return rule


# ---- FedProx, SCAFFOLD -------------------------------------------------------------------------------------


def test_fedprox_is_fedavg_at_the_server_and_tells_mu() -> None:
    assert FedProx().round_hints().to_json() == {"fedprox": {"mu": 0.01}}
    states = []
    for rule in (make_rule("fedprox", {"mu": 1.0}), make_rule("fedavg", {})):
        rule.begin(STATE)
        rule.add("a", update(1.0, 30))
        rule.add("b", update(-1.0, 10))
        states.append(rule.finish()["w"])
    assert torch.equal(*states)


def test_scaffold_adds_a_kth_of_the_changes_of_whoever_took_part_to_c() -> None:
    rule = Scaffold(lr=0.5)
    rule.begin(STATE)
    rule.add("a", update(1.0, 90))
    rule.add("b", update(3.0, 10))
    assert rule.finish()["w"].tolist() == [1.0, 1.0]
    down = rule.update_server_state({"control.w": torch.tensor([8.0, 4.0]), "bank": torch.ones(1)}, sites=4)
    assert down["control.w"].tolist() == [2.0, 1.0]
    assert down["bank"].tolist() == [1.0]
    down = rule.update_server_state({"control.w": torch.tensor([-4.0, 0.0])}, sites=4)
    assert down["control.w"].tolist() == [1.0, 1.0]
    assert rule.report()["checks"] == {"control_norm": pytest.approx(math.sqrt(2))}


@pytest.mark.parametrize("control", ["gradients", "option_2"])
def test_scaffold_tells_the_sites_how_to_find_their_control_variates(control: str) -> None:
    hints = make_rule("scaffold", {"control": control}).round_hints()
    assert hints.control_variates == ControlVariatesHint(control=control)


@pytest.mark.parametrize(("weighting", "mean"), [("uniform", 2.0), ("examples", 1.2)])
def test_scaffold_weighs_as_it_is_set(weighting: str, mean: float) -> None:
    rule = make_rule("scaffold", {"weighting": weighting})
    rule.begin(STATE)
    rule.add("a", update(1.0, 90))
    rule.add("b", update(3.0, 10))
    assert rule.finish()["w"].tolist() == pytest.approx([mean] * 2)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_what_tokens_may_count_for_is_told_to_sites_that_weigh_their_own(name: str) -> None:
    rule = make_rule(name, {"weighting": "tokens", "most_tokens": 8})
    assert rule.site_weight == SiteWeight(unit="tokens", most_per_example=8.0)


def test_counters_are_averaged_whatever_the_servers_rate() -> None:
    rule = Scaffold(lr=0.1)
    rule.begin(STATE)
    rule.add("a", update(1.0))
    assert int(rule.finish()["n"]) == 6


def test_c_goes_down_even_after_a_round_without_sums_and_survives_a_restart(tmp_path: Path) -> None:
    rule, again = Scaffold(), Scaffold()
    rule.update_server_state({"control.w": torch.ones(2)}, 2)
    again.load_state_dict(kept(rule, tmp_path))
    assert again.update_server_state({}, 2)["control.w"].tolist() == [0.5, 0.5]


# ---- DRFA --------------------------------------------------------------------------------------------------


@given(values=arrays(float, st.integers(1, 6), elements=st.floats(-5, 5)))
def test_the_projection_is_the_nearest_point_of_the_simplex(values: np.ndarray) -> None:
    result = onto_simplex(values)
    assert result.sum() == pytest.approx(1)
    assert (result >= 0).all()
    shift = (values - result)[result > 0]
    assert np.allclose(shift, shift[0], atol=1e-9)
    assert (values[result == 0] <= shift[0] + 1e-9).all()


@pytest.mark.parametrize("values", [[0.2, 0.9, 0.4], [3.0, -1.0, 0.0, 2.9], [0.25, 0.75]])
def test_the_projection_is_what_a_solver_finds(values: list[float]) -> None:
    wanted = minimize(
        lambda x: ((x - values) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        tol=1e-12,
    )
    assert onto_simplex(np.array(values)) == pytest.approx(wanted.x, abs=1e-5)


def test_lambda_starts_at_the_share_of_the_examples_and_decides_how_often_a_site_is_drawn() -> None:
    rule, often = Drfa(m=2), Counter[str]()
    for number in range(2000):
        drawn = rule.sample_clients(number, 1, EXAMPLES, list(EXAMPLES))
        often.update(rule.round_hints().snapshot.drawn)
        assert drawn == sorted(rule.round_hints().snapshot.drawn)
    assert rule.report()["lambda"] == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})
    assert sum(often.values()) == 4000
    assert {site: n / 4000 for site, n in often.items()} == pytest.approx(
        {"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.03
    )


def test_a_site_that_cannot_be_asked_is_not_drawn_and_keeps_its_lambda() -> None:
    rule = Drfa(m=4)
    assert all(set(rule.sample_clients(r, 1, EXAMPLES, ["b", "c"])) <= {"b", "c"} for r in range(20))
    assert rule.report()["lambda"]["a"] == 0.6


def test_drawing_goes_on_until_enough_different_sites_were_drawn() -> None:
    rule, names = Drfa(m=1), list(EXAMPLES)
    assert {len(rule.sample_clients(r, 1, EXAMPLES, names)) for r in range(20)} == {1}
    assert {len(rule.sample_clients(r, 1, EXAMPLES, names, min_clients=2)) for r in range(20)} == {2}
    assert all(rule.sample_clients(r, 1, EXAMPLES, names, min_clients=3) == names for r in range(20))
    assert rule.sample_clients(0, 1, EXAMPLES, ["b"], min_clients=3) == ["b"]


def test_shares_of_the_snapshot_are_uniform_and_a_draw_is_repeatable() -> None:
    rule, again, shares = Drfa(), Drfa(), []
    for number in range(400):
        rule.sample_clients(number, 3, EXAMPLES, list(EXAMPLES))
        again.sample_clients(number, 3, EXAMPLES, list(EXAMPLES))
        assert rule.round_hints() == again.round_hints()
        shares.append(rule.round_hints().snapshot.share)
    assert 0 < min(shares) < 0.05
    assert 0.95 < max(shares) <= 1
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    json.dumps(rule.round_hints().to_json())


def test_a_site_counts_as_often_as_it_was_drawn_whatever_it_says() -> None:
    rule = ready(m=8)
    drawn = rule.round_hints().snapshot.drawn
    for site in drawn:
        rule.add(site, update({"a": 1.0, "b": 2.0, "c": 4.0}[site], examples=1000, factor=7.0))
    mean = sum(n * {"a": 1.0, "b": 2.0, "c": 4.0}[site] for site, n in drawn.items()) / 8
    assert rule.finish()["w"][0].item() == pytest.approx(mean)
    assert rule.report()["weights"] == pytest.approx({site: n / 8 for site, n in drawn.items()})


def test_at_the_end_of_a_round_its_result_is_probed_and_no_snapshot_travels() -> None:
    rule = ready(snapshot="end", m=3)
    hints = rule.client_terms()
    assert hints.snapshot is None
    assert hints.importance is not None
    drawn = rule.report()["drawn"]
    assert hints.importance.weights == drawn
    assert hints.importance.largest == max(drawn.values())
    probe = rule.probe()
    assert probe is not None
    assert probe.state is None


def probed(rule: Drfa, losses: dict[str, float], snapshot: float = 6.0) -> dict[str, float]:
    rule.add("a", update(1.0))
    rule.finish()
    sums = {"snapshot.w": torch.full((2,), snapshot), "snapshot.n": torch.tensor(3.0)}
    left = rule.update_server_state(sums | {"drawn": torch.tensor(3.0), "bank": torch.ones(1)}, 3)
    assert set(left) == {"bank"}
    probe = rule.probe()
    assert probe is not None
    assert probe.state["w"].tolist() == [snapshot / 3] * 2
    assert (int(probe.state["n"]), probe.examples) == (5, 32)
    rule.receive_losses(losses)
    found: dict[str, float] = rule.report()["lambda"]
    return found


def test_lambda_moves_by_the_losses_of_the_mean_snapshot() -> None:
    start, losses = np.array([0.6, 0.3, 0.1]), np.array([1.0, 2.0, 4.0])
    result = probed(ready(step=0.05), dict(zip("abc", losses, strict=True)))
    expected = onto_simplex(start + 0.05 * losses)
    assert list(result.values()) == pytest.approx(expected)
    assert result["c"] > 0.1


def test_few_answers_stand_for_all_and_odd_ones_say_nothing() -> None:
    result = probed(ready(step=0.05), {"c": 2.0, "a": math.nan, "b": -3.0})
    assert list(result.values()) == pytest.approx(onto_simplex(np.array([0.6, 0.3, 0.1 + 0.05 * 3 * 2.0])))
    still = probed(ready(step=0.05), {})
    assert still == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})


def test_a_loss_of_zero_counts_as_an_answer() -> None:
    rule = ready(step=0.05)
    result = probed(rule, {"a": 0.0, "b": 0.5, "c": 2.0})
    assert list(result.values()) == pytest.approx(
        onto_simplex(np.array([0.6, 0.3 + 0.05 * 0.5, 0.1 + 0.05 * 2.0]))
    )
    assert rule.report()["probed"] == {"a": 0.0, "b": 0.5, "c": 2.0}


def test_sites_that_measure_losses_are_drawn_uniformly_and_asked_once_a_round() -> None:
    rule, asked = ready(m=2), Counter[str]()
    for number in range(300):
        rule.sample_clients(number, 5, EXAMPLES, list(EXAMPLES))
        rule.begin(STATE)
        rule.update_server_state(
            {"snapshot.w": torch.ones(2), "snapshot.n": torch.tensor(1.0), "drawn": torch.tensor(1.0)}, 3
        )
        probe = rule.probe()
        assert probe is not None
        assert len(set(probe.sites)) == len(probe.sites) == 2
        asked.update(probe.sites)
        rule.receive_losses({})
        assert rule.probe() is None
    assert all(n == pytest.approx(200, abs=30) for n in asked.values())  # uniform, whatever λ is


def test_no_lambda_falls_below_the_floor() -> None:
    result = probed(ready(step=1.0), {"a": 5.0, "b": 0.0, "c": 0.0})
    assert result == pytest.approx({"a": 1 / 1.002, "b": 1e-3 / 1.002, "c": 1e-3 / 1.002})


def test_lambda_survives_a_restart(tmp_path: Path) -> None:
    rule, again = ready(step=0.05), Drfa(step=0.05)
    probed(rule, {"a": 1.0, "b": 2.0, "c": 4.0})
    again.load_state_dict(kept(rule, tmp_path))
    names = list(EXAMPLES)
    assert [rule.sample_clients(r, 9, EXAMPLES, names) for r in range(9)] == [
        again.sample_clients(r, 9, EXAMPLES, names) for r in range(9)
    ]
    assert again.report()["lambda"] == rule.report()["lambda"]


def test_without_snapshots_nothing_is_probed() -> None:
    rule = ready()
    rule.add("a", update(1.0))
    rule.finish()
    rule.update_server_state({}, 3)
    assert rule.probe() is None
