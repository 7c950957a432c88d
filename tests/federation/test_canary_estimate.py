# SPDX-License-Identifier: Apache-2.0
"""The canary's one step says how long a round takes, before anything long begins."""

from __future__ import annotations

import math

import pytest
from fed_harness import SITES, completed, events, failed

from medflare.core.plan import RoundPlan
from medflare.federation.server.canary_estimate import estimate_round, too_full, too_slow
from medflare.in_process.clocked_loop import Workload

WORK = Workload(down=0, up=0, batch=8, epochs=2)
STEP = {"metrics": {"seconds": 3.0, "peak_gb": 2.0, "memory_share": 0.25}, "seconds": 9.0}


@pytest.mark.parametrize(
    ("plan", "steps"),
    [({}, 25), ({"steps": 5}, 5), ({"fraction": 0.5}, 7)],
)
def test_a_round_is_as_many_steps_as_its_plan_says(plan: dict[str, float], steps: int) -> None:
    found = estimate_round(STEP, RoundPlan(round=0, rounds=1, **plan), WORK, 100)  # type: ignore[arg-type]
    assert found is not None
    assert (found.steps, found.seconds, found.memory_share) == (steps, 3.0 * steps, 0.25)


def test_where_metrics_stay_at_the_site_the_seconds_of_the_task_count() -> None:
    plan = RoundPlan(round=0, rounds=1, steps=2)
    found = estimate_round({"metrics": {}, "seconds": 9.0}, plan, WORK, 100)
    assert found is not None
    assert (found.seconds, found.peak_gb) == (18.0, None)
    assert too_full({"a": found}) == ""
    for silly in (math.nan, math.inf, -1.0, "soon"):
        assert estimate_round({"metrics": {"seconds": silly}}, plan, WORK, 100) is None


def test_slow_sites_and_full_memories_are_named_with_their_numbers() -> None:
    full = {"metrics": STEP["metrics"] | {"memory_share": 0.95}}  # type: ignore[operator]
    found = estimate_round(full, RoundPlan(round=0, rounds=1, steps=1200), WORK, 100)
    assert found is not None
    assert too_slow({"a": found}, 3600) == {}
    slow = too_slow({"a": found}, 3500)
    assert slow == {"a": "a needs about 3,600 s for the 1,200 steps of a round (3.00 s a step)"}
    assert too_full({"a": found}).startswith("a used 2.0 GB, 95% of what it has: a longer batch may not fit.")


def test_the_estimate_stands_in_the_record_and_a_hopeless_run_ends_before_its_first_round(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = completed(federation(controller={"canary": True}))
    known = record.preparation["canary"]
    assert known["deadline"] > 0
    assert sorted(known["sites"]) == sorted(SITES)
    first = known["sites"]["site-1"]
    assert first["seconds"] == pytest.approx(first["steps"] * first["seconds_per_step"], abs=0.1)
    assert 0 < first["memory_share"] < 1
    assert first["peak_gb"] > 0.1
    monkeypatch.setattr("medflare.federation.server.canary_estimate.as_metric", lambda value: 1e6)
    run = federation(controller={"canary": True})
    record = failed(run, "no round would succeed: site-1 needs about", "Set deadline=", "steps=1")
    assert record.rounds == []
    assert not events(run, "round")
