# SPDX-License-Identifier: Apache-2.0
"""Baselines over the exchanges of FedTAR: any rule, where a site lacks a visit or nobody has it (TAR-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fed_harness
import pytest
import torch
from fed_harness import Federation, completed
from fed_visits import COUNTS, NAME, VisitLearner, build_visits, final_w
from safetensors.torch import load_file
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.core.plan import RoundPlan
from medflare.federation.server.controller import RoundsController, TemporalRoundsController
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import visit_by_visit
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts

RULES: list[tuple[str, dict[str, Any]]] = [
    ("weighted_mean", {}),
    ("fedprox", {"mu": 0.1}),
    ("scaffold", {}),
    ("scaffold", {"control": "option_2"}),
    ("fedadam", {"lr": 0.1}),
    ("fedyogi", {"lr": 0.1}),
    ("drfa", {"step": 0.1}),
]
NAMES = [f"{name}-{'-'.join(map(str, settings.values()))}".strip("-") for name, settings in RULES]
ONE_LACKS = {"site-1": [9, 7, 5], "site-2": [6, 0, 8], "site-3": [4, 8, 3]}
NOBODY_HAS = {"site-1": [9, 0, 5], "site-2": [6, 0, 8], "site-3": [4, 0, 0]}
ROUNDS, VISITS = 2, 3
Make = Callable[..., Federation]


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=1, seed=7)


def alone(counts: dict[str, list[int]], rule: AggregationRule, exchanges: int = ROUNDS * VISITS) -> Tensor:
    """The state after so many exchanges in one process."""
    learners = {site: VisitLearner({"counts": counts}, site, 0) for site in counts}
    return federate(learners, rule, exchanges, visit_by_visit(plan, VISITS))[NAME]


@pytest.fixture
def visits(federation: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A federation of ROUNDS temporal rounds of a rule over sites with these visits."""
    monkeypatch.setattr(fed_harness, "build_toy", build_visits)

    def make(
        name: str, settings: dict[str, Any], counts: dict[str, list[int]], **controller: Any
    ) -> Federation:
        return federation(
            controller={"num_rounds": ROUNDS, "seed": 7, "visits": VISITS, **controller},
            rule={"rule": name, "rule_settings": settings},
            toy={"counts": counts},
            flow_class=TemporalRoundsController,
        )

    return make


@pytest.mark.parametrize(("name", "settings"), RULES, ids=NAMES)
@pytest.mark.parametrize(
    "counts", [ONE_LACKS, COUNTS, NOBODY_HAS], ids=["one lacks", "two lack", "nobody has"]
)
def test_every_baseline_is_the_run_in_one_process(
    visits: Make, name: str, settings: Any, counts: Any
) -> None:
    run, rule = visits(name, settings, counts), make_rule(name, settings)
    record = completed(run)
    expected = alone(counts, rule)
    assert torch.equal(final_w(run), expected)
    assert float(expected.abs().max()) > 0.05
    last = record.rounds[-1]
    assert last.mean["val_loss"] > 0
    assert last.rule == rule.report()


@pytest.mark.parametrize(("name", "settings"), RULES, ids=NAMES)
def test_a_visit_that_nobody_has_leaves_state_and_rule_as_they_are(name: str, settings: Any) -> None:
    before, after = make_rule(name, settings), make_rule(name, settings)
    state = alone(NOBODY_HAS, before, 1)
    assert torch.equal(alone(NOBODY_HAS, after, 2), state)
    kept, now = before.state_dict(), after.state_dict()
    assert torch.equal(torch.tensor(flat(now)), torch.tensor(flat(kept)))


def flat(kept: Any) -> list[float]:
    """All numbers that a rule keeps, in order of their names."""
    if isinstance(kept, dict):
        return [number for key in sorted(kept) for number in flat(kept[key])]
    return torch.as_tensor(kept, dtype=torch.float64).flatten().tolist()


def test_a_visit_that_nobody_has_is_in_the_record_with_everybody(visits: Make) -> None:
    first = completed(visits("scaffold", {}, NOBODY_HAS)).rounds[0]
    second = first.exchanges[1]
    assert second.accepted == dict.fromkeys(NOBODY_HAS, 0)
    assert second.rule == {}
    assert second.checks["update_norm"] == 0
    assert first.exchanges[0].checks["control_norm"] > 0
    assert first.accepted == {"site-1": 14, "site-2": 14, "site-3": 4}


def test_weights_are_of_the_sites_that_have_the_visit(visits: Make) -> None:
    visit = completed(visits("weighted_mean", {}, ONE_LACKS)).rounds[0].exchanges[1]
    assert visit.accepted == {"site-1": 7, "site-2": 0, "site-3": 8}
    assert visit.rule["weights"] == {"site-1": 7 / 15, "site-3": 8 / 15}


def test_a_site_that_nobody_drew_for_a_visit_is_still_tested_and_counted(visits: Make) -> None:
    """DRFA draws anew in every exchange; a round in which no site was in all of them is a round."""
    rounds = completed(visits("drfa", {"m": 1}, ONE_LACKS)).rounds
    assert [len(visit.accepted) for entry in rounds for visit in entry.exchanges] == [1] * 6
    assert any(not entry.accepted for entry in rounds)
    assert all("val_loss" in entry.mean and "train_loss" in entry.mean for entry in rounds)


@pytest.mark.parametrize(("name", "settings"), RULES, ids=NAMES)
@pytest.mark.parametrize("counts", [ONE_LACKS, NOBODY_HAS], ids=["one lacks", "nobody has"])
def test_under_masks_it_is_the_same_to_rounding(visits: Make, name: str, settings: Any, counts: Any) -> None:
    if name == "drfa":  # under masks no fewer than three sites are drawn; here they are in any case
        settings = {"m": 24, "step": 1e-3}
    plain, masked = visits(name, settings, counts), visits(name, settings, counts, protection="masking")
    expected, record = completed(plain), completed(masked)
    assert torch.allclose(final_w(masked), final_w(plain), rtol=0, atol=1e-4)
    visit = record.rounds[0].exchanges[1]
    assert bool(visit.protection["weight"]) == (counts is ONE_LACKS)
    assert visit.checks["update_norm"] == pytest.approx(
        expected.rounds[0].exchanges[1].checks["update_norm"], abs=1e-4
    )


@pytest.mark.parametrize("counts", [ONE_LACKS, NOBODY_HAS], ids=["one lacks", "nobody has"])
def test_under_encryption_it_is_the_same_to_rounding(visits: Make, counts: Any) -> None:
    run = visits("weighted_mean", {}, counts, protection="he")
    make_contexts(run.root / "startup", ContextParameters())
    completed(run)
    found = load_file(run.site_folder("site-2") / "result" / "adapter" / "adapter_model.safetensors")
    expected = alone(counts, make_rule("weighted_mean", {}))
    assert torch.allclose(found[NAME.removeprefix("adapter.")], expected, rtol=0, atol=1e-5)


def test_where_a_round_is_one_exchange_an_update_of_no_examples_is_refused(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fed_harness, "build_toy", build_visits)
    monkeypatch.setattr(VisitLearner, "rows", lambda self, plan: self.data[1])
    run = federation(
        controller={"num_rounds": 1, "seed": 7},
        rule={"rule": "weighted_mean"},
        toy={"counts": ONE_LACKS},
        flow_class=RoundsController,
    )
    record = run.run()
    assert record.status == "failed"
    assert "weight 0, expected 1 to the 14 training examples" in record.reason
