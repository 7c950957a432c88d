# SPDX-License-Identifier: Apache-2.0
"""A site that sends huge values or claims a huge weight: it loses its round, and the model is the others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import Federation, completed, final
from lying_site import Lie, claiming, lying, scaled

from medflare.federation.server.update_limits import limited_weights

ADAPTER = "adapter.base_model.model.layer.lora_A.weight"
Make = Callable[..., Federation]


def filled(value: float) -> Lie:
    """The lie that sends one value everywhere."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = torch.full_like(tensor, value)

    return lie


def as_dtype(dtype: torch.dtype) -> Lie:
    """The lie that sends the adapter in another dtype."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[ADAPTER] = tensors[ADAPTER].to(dtype)

    return lie


def honest_state(federation: Make, **options: Any) -> dict[str, torch.Tensor]:
    """The result of the honest sites alone: the liar's updates are refused for their shape."""

    def empty(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors.clear()

    run = federation(tamper=lying("site-2", {"fit": empty}), **options)
    completed(run)
    return final(run)


@pytest.mark.parametrize("value", [3e38, 1e30, -1e30, 1e5], ids=str)
def test_huge_values_cost_their_site_the_round_and_nobody_else(federation: Make, value: float) -> None:
    options: dict[str, Any] = {"controller": {"min_responses": 2}}
    run = federation(tamper=lying("site-2", {"fit": filled(value)}), **options)
    record = completed(run)
    for entry in record.rounds:
        assert set(entry.accepted) == {"site-1", "site-3"}
        assert "update: norm" in entry.absent["site-2"] or "not finite" in entry.absent["site-2"]
    state, expected = final(run), honest_state(federation, **options)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["median", "krum", "fedadam"])
def test_other_rules_never_see_them(federation: Make, name: str) -> None:
    run = federation(
        controller={"min_responses": 2},
        rule={"rule": name, "rule_settings": {"allow_unsafe": True} if name == "krum" else {}},
        tamper=lying("site-2", {"fit": filled(1e30)}),
    )
    assert all("site-2" in entry.absent for entry in completed(run).rounds)
    assert all(value.abs().max() < 1e3 for value in final(run).values())


def test_with_two_sites_the_model_itself_is_the_measure(federation: Make) -> None:
    run = federation(
        sites=("site-1", "site-2"),
        controller={"min_responses": 1},
        tamper=lying("site-2", {"fit": filled(1e30)}),
    )
    assert "times the model's own" in completed(run).rounds[0].absent["site-2"]


def test_tiny_updates_do_not_make_the_others_look_large(federation: Make) -> None:
    run = federation(tamper=lying("site-2", {"fit": scaled(1e-9)}))
    assert all(len(entry.accepted) == 3 for entry in completed(run).rounds)


def test_where_most_updates_grow_the_training_has_changed_and_all_count(federation: Make) -> None:
    lies = [lying(site, {"fit": scaled(1e-4)}, times=1) for site in ("site-1", "site-2", "site-3")]

    def tamper(site: str, task: str, reply: Any) -> Any:
        return next((out for lie in lies if (out := lie(site, task, reply)) is not None), None)

    record = completed(federation(tamper=tamper))
    assert all(len(entry.accepted) == 3 for entry in record.rounds)


def test_no_limit_where_the_job_says_so(federation: Make) -> None:
    run = federation(
        controller={"max_norm_ratio": None, "downlink": "float32"},
        tamper=lying("site-2", {"fit": filled(1e5)}),
    )
    assert set(completed(run).rounds[0].accepted) == {"site-1", "site-2", "site-3"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_a_tensor_of_another_dtype_than_declared_is_refused(federation: Make, dtype: torch.dtype) -> None:
    run = federation(controller={"min_responses": 2}, tamper=lying("site-2", {"fit": as_dtype(dtype)}))
    assert f"has dtype {dtype}" in completed(run).rounds[0].absent["site-2"]


def claims(count: int) -> dict[str, Lie]:
    """The lies of a site that says it has more training examples than anyone."""

    def prepare(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        describe = dict(reply["facts"]["describe"])
        reply["facts"]["describe"] = {**describe, "examples": {**describe["examples"], "train": count}}

    return {"prepare": prepare, "fit": claiming(examples=count)}


def test_a_claim_of_a_billion_examples_has_the_largest_allowed_share(federation: Make) -> None:
    run = federation(tamper=lying("site-2", claims(10**9)))
    entry = completed(run).rounds[0]
    total = sum(entry.accepted.values())
    assert entry.accepted["site-2"] / total == pytest.approx(0.8, abs=0.02)
    assert entry.rule["weights"]["site-2"] == pytest.approx(0.8, abs=0.02)


def test_the_share_is_the_jobs_to_set(federation: Make) -> None:
    run = federation(controller={"max_share": 0.4}, tamper=lying("site-2", claims(10**9)))
    assert completed(run).rounds[0].rule["weights"]["site-2"] == pytest.approx(0.4, abs=0.02)


def test_a_result_that_is_not_finite_loses_the_round_and_not_the_run(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medflare.aggregation.weighted_mean import WeightedMean

    finish, calls = WeightedMean.finish, []

    def broken(rule: WeightedMean) -> Any:
        state = finish(rule)
        calls.append(1)
        return {name: value * float("nan") for name, value in state.items()} if len(calls) == 1 else state

    monkeypatch.setattr(WeightedMean, "finish", broken)
    record = completed(federation())
    assert record.rounds[0].accepted == {}
    assert "the round's result could not be used" in record.rounds[0].absent["site-1"]
    assert set(record.rounds[1].accepted) == {"site-1", "site-2", "site-3"}


@pytest.mark.parametrize("lie", [filled(float("nan")), filled(float("inf")), as_dtype(torch.int32)])
def test_first_values_that_are_none_come_from_the_next_site(federation: Make, lie: Lie) -> None:
    run = federation(tamper=lying("site-1", {"initialise": lie}))
    record = completed(run)
    assert set(record.rounds[0].accepted) == {"site-1", "site-2", "site-3"}


def test_no_site_is_limited_to_nothing() -> None:
    assert limited_weights({"a": 10, "b": 1}, 0.1) == {"a": 1, "b": 1}
    assert limited_weights({"a": 100, "b": 10**9, "c": 100}, 0.8) == {"a": 100, "b": 800, "c": 100}
