# SPDX-License-Identifier: Apache-2.0
"""Sites that answer in every round, and never with an update that counts, under a rule that draws."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import Make, completed
from fed_learner import ADAPTER
from fed_quadratic import QuadraticLearner

from medflare.core.errors import DataError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord
from medflare.core.update import Update

ROUNDS = 24
FAST = {"latency_profiles": {"site-1": {"seconds_per_example": 1.0, "down": 10, "up": 10}}}
for _site in ("site-2", "site-3"):
    FAST["latency_profiles"][_site] = {"seconds_per_example": 9.0, "down": 10, "up": 10}
REAL, SIMULATED = {"deadline": 20.0}, {**FAST, "simulated_deadline": 1000.0, "deadline": 20.0}


class BrokenLearner(QuadraticLearner):
    """Site-1 is the fastest; after round 0, as setting `breaks` says, it raises or its update is refused."""

    def fit(self, plan: RoundPlan) -> Update:
        time.sleep(0.0 if self.site == "site-1" else 0.05)
        update = super().fit(plan)
        if self.site == "site-1" and plan.round > 0:
            if self.settings["breaks"] == "raises":
                raise DataError("the notes of this site cannot be read.")
            update.delta[ADAPTER] = torch.full((1, 2), torch.nan)
        return update


@pytest.fixture
def broken(federation: Make) -> Callable[..., RunRecord]:
    QuadraticLearner({}, "site-1", 0).fit(RoundPlan(round=0, rounds=1))  # torch's first step takes seconds

    def run(breaks: str, **more: Any) -> RunRecord:
        common = {"num_rounds": ROUNDS, "seed": 7, "evaluate_every": 0, "max_lost_rounds": 6}
        rule = {"rule": "ddcs", "rule_settings": {"draws": 3, "period": 1}}
        settings, controller = {"breaks": breaks}, {**common, **more}
        return completed(
            federation(controller=controller, rule=rule, settings=settings, learner=BrokenLearner)
        )

    return run


def share(record: RunRecord, first: int, last: int) -> float:
    """Of draws that fell on site-1."""
    drawn = [entry.rule["drawn"] for entry in record.rounds[first:last]]
    return sum(counts.get("site-1", 0) for counts in drawn) / sum(sum(c.values()) for c in drawn)


@pytest.mark.parametrize("breaks", ["raises", "is refused"])
@pytest.mark.parametrize("clock", [REAL, SIMULATED], ids=["real clock", "simulated clock"])
def test_a_site_without_an_update_that_counts_is_drawn_less_and_the_run_completes(
    broken, breaks: str, clock: dict[str, Any]
) -> None:
    record = broken(breaks, **clock)
    failed = [entry for entry in record.rounds[1:] if "site-1" in entry.rule["drawn"]]
    assert failed
    assert all("site-1" in entry.rule["vanished"] for entry in failed)
    odds = [entry.rule["odds"]["site-1"] for entry in record.rounds]
    after = failed[0].round + 1
    assert odds[after] < 0.7 * odds[0]
    assert share(record, after, ROUNDS) < 0.35
    lapsed = clock.get("simulated_deadline", clock["deadline"])
    assert record.rounds[-1].rule["latencies"]["site-1"]["compute"] > 0.25 * lapsed
