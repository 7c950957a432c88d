# SPDX-License-Identifier: Apache-2.0
"""How rules stand in the rounds: factors that sites claim, updates a rule refuses, tensors a rule adds."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from fed_equality import Case, assert_equal, in_flare
from fed_harness import accepted, completed, failed
from fed_toy import ToyLearner

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.influence import Influence
from medflare.aggregation.lora import LoraStack
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.site_description import SharedRecords, SiteDescription
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.aggregator import ValidatingAggregator

STEM = "adapter.q"
A, B = f"{STEM}.lora_A.weight", f"{STEM}.lora_B.weight"


class Picky(WeightedMean):
    """Refuses the sites it is told to."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.bad = refused

    def add(self, site: str, update: Update) -> None:
        if site in self.bad:
            raise UpdateError(f"{site} looks odd")
        super().add(site, update)


class Adding(WeightedMean):
    """Adds a tensor to the state."""

    def finish(self) -> State:
        return super().finish() | {"merged.x": torch.tensor([math.nan])}


def ready(rule: AggregationRule, state: State | None = None) -> ValidatingAggregator:
    """An aggregator in a later round over sites a and b with 10 examples each."""
    aggregator = ValidatingAggregator()
    aggregator.rule = rule
    state = state or {"w": torch.zeros(2)}
    aggregator.expect({n: (tuple(v.shape), v.dtype) for n, v in state.items()}, {}, {"a": 10, "b": 10})
    # as after a round: no update has to wait for the others
    aggregator.limits.change.latest = {"a": 1.0, "b": 1.0}
    aggregator.begin(0, state, ["a", "b"])
    return aggregator


def send(aggregator: ValidatingAggregator, site: str, value: float = 1.0, **facts: Any) -> str | None:
    tensors = {name: torch.full_like(old, value) for name, old in aggregator.state.items()}
    return aggregator.accept(site, 0, {"examples": 10, "metrics": {}, **facts}, tensors)


@pytest.mark.parametrize("factor", [math.exp(2), math.exp(-2), 1, 1.0])
def test_a_factor_within_the_clip_scales_the_weight(factor: float) -> None:
    aggregator = ready(Influence(mode="client", clip=2.0))
    assert send(aggregator, "a", 0.0) is None
    assert send(aggregator, "b", 1.0, factor=factor) is None
    state, _, _ = aggregator.finish()
    assert state["w"][0].item() == pytest.approx(factor / (1 + factor))


@pytest.mark.parametrize(
    ("rule", "factor", "expected"),
    [
        (Influence(mode="client", clip=2.0), 7.5, "between e^-2 and e^2"),
        (Influence(mode="client", clip=2.0), 0.1, "between e^-2 and e^2"),
        (Influence(mode="client"), 0.0, "between"),
        (Influence(mode="client"), -1.0, "between"),
        (Influence(mode="client"), math.nan, "between"),
        (Influence(mode="client"), math.inf, "between"),
        (Influence(mode="client"), "2", "between"),
        (Influence(mode="client"), True, "between"),
        (WeightedMean(), 1.01, "expected 1: this rule takes no site's own factor"),
    ],
)
def test_a_factor_outside_is_rejected_with_the_bounds(rule: Any, factor: Any, expected: str) -> None:
    aggregator = ready(rule)
    reason = send(aggregator, "a", factor=factor)
    assert reason is not None
    assert reason.startswith(f"factor {factor!r}")
    assert expected in reason
    assert aggregator.accepted == {}


def test_an_update_that_the_rule_refuses_is_rejected_with_the_rules_reason() -> None:
    aggregator = ready(Picky("a"))
    assert send(aggregator, "a", 9.0) == "refused by the aggregation rule: a looks odd"
    assert send(aggregator, "b", 1.0) is None
    assert aggregator.accepted == {"b": 10}
    assert aggregator.finish()[0]["w"].tolist() == [1.0, 1.0]


def test_an_update_that_had_to_wait_is_refused_when_its_turn_comes() -> None:
    aggregator = ready(Picky("b"))
    assert send(aggregator, "b", 9.0) is None
    assert send(aggregator, "a", 1.0) is None
    assert aggregator.mark_done("a") == {"b": "refused by the aggregation rule: b looks odd"}
    assert aggregator.accepted == {"a": 10}


def test_a_rule_may_add_only_the_tensors_it_declares_and_they_must_be_finite() -> None:
    for outside, reason in [((), "unexpected tensor 'merged.x'"), (("merged.",), "'merged.x' has values")]:
        rule = Adding()
        rule.facts = replace(rule.facts, extra_tensors=outside)
        aggregator = ready(rule)
        send(aggregator, "a")
        with pytest.raises(UpdateError, match=reason):
            aggregator.finish()


def test_a_stack_passes_the_checks_and_reports_the_norm_of_the_product() -> None:
    aggregator = ready(LoraStack(), {A: torch.ones(2, 3), B: torch.zeros(4, 2)})
    send(aggregator, "a")
    send(aggregator, "b")
    state, _, checks = aggregator.finish()
    assert set(state) == {A, B, "merged.q.lora_A.weight", "merged.q.lora_B.weight"}
    assert checks["update_norm"] == pytest.approx(math.sqrt(4 * 3) * 2 * 2)


def test_a_refused_site_is_absent_with_the_reason_even_if_it_answered_first(federation) -> None:
    settings = {"sites": {"site-1": {"hang": {"0": 0.5}}}}
    run = federation(controller={"num_rounds": 1, "min_responses": 2}, settings=settings)
    run.aggregator.rule = Picky("site-3")
    record = completed(run)
    assert accepted(record) == [["site-1", "site-2"]]
    assert record.rounds[0].absent == {"site-3": "refused by the aggregation rule: site-3 looks odd"}
    assert "update refused" in (run.folder / "progress.jsonl").read_text()


def test_refused_updates_do_not_count_towards_the_quorum(federation) -> None:
    run = federation(controller={"num_rounds": 1, "min_responses": 2})
    run.aggregator.rule = Picky("site-1", "site-2")
    record = failed(run, "site-2 looks odd")
    assert re.search("[01] accepted, 2 needed", record.reason)  # site-3 may be given up before it answers


def test_sites_learn_the_rules_hints_and_send_their_factor(federation) -> None:
    seen: list[float] = []

    class Weighing(ToyLearner):
        """Says that it holds the validation notes of all sites; site-2 counts more than it has examples."""

        def describe(self) -> SiteDescription:
            notes = {"validation": SharedRecords(notes=5, sha256="0" * 64)}
            return super().describe().model_copy(update=notes)

        def fit(self, plan: RoundPlan) -> Update:
            seen.append(plan.hints.influence.clip)
            update = super().fit(plan)
            update.factor = 1.5 if self.site == "site-2" else 1.0
            return update

    settings = {"mode": "client", "clip": 0.5}
    case = Case(rule="influence", settings=settings, learner=Weighing, rounds=2, canary=True)
    record, _ = assert_equal(case, in_flare(case, federation))
    assert seen == [0.5] * (9 + 6)
    weights = {"site-1": 16 / 70, "site-2": 30 / 70, "site-3": 24 / 70}
    assert record.rounds[1].rule["weights"] == pytest.approx(weights)
