# SPDX-License-Identifier: Apache-2.0
"""How long sites take in a round: as seen, or worked out from declared profiles.

Computing is what a site says it trained; transfer is the rest of the time between the task's leaving and the
reply's coming. Steps of a secure sum are exchanges of their own and count as neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import NeedsLatencies
from medflare.core.plan import RoundPlan
from medflare.core.site_description import description_of
from medflare.federation.outcome import Outcome
from medflare.federation.server.run_recorder import as_float
from medflare.in_process.clocked_loop import Passing, Workload, check_deadline, lapse_seconds
from medflare.selection.clock import SimulatedClock
from medflare.selection.latency import Timing

SHORTEST = 1e-6
"""Seconds; no reply takes none."""
VANISHED, LATE = "vanished (simulated)", "too late (simulated)"


class SeenTimes:
    """Seconds of this server's clock.

    Args:
        deadline: seconds a site may take in an exchange; inf for no deadline.

    Attributes:
        now: of a simulated clock, seconds since the run began; None where time passes by itself.
    """

    now: float | None = None

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline

    def expect(self, sites: Sequence[str], train: Mapping[str, int], work: Workload) -> None:
        """What is known before round 1. train: training examples of each site."""

    def attend(self, plan: RoundPlan, sites: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """(who of `sites` is asked to train, reason for each of the others)."""
        return list(sites), {}

    def tell(self, rule: AggregationRule, outcome: Outcome) -> dict[str, Timing]:
        """After an exchange of updates: what accepted sites took, to a rule that asks, and who lapsed.

        A site that was waited for lapses by those seconds. One that answered with an error, or whose update
        was refused, is as little use as one that never answers, and lapses by `lapse_seconds`.
        """
        trips = outcome.trips
        found = {s: timing_of(told, trips[s]) for s, told in sorted(outcome.facts.items()) if s in trips}
        failed = dict.fromkeys(_failed(outcome), lapse_seconds(self.deadline, found.values()))
        _tell(rule, found, failed | outcome.waited)
        return found


class SimulatedTimes(SeenTimes):
    """Seconds of a simulated clock; a site that its profile makes vanish is not asked.

    Args:
        deadline: of an exchange, simulated seconds.
    """

    def __init__(self, clock: SimulatedClock, deadline: float) -> None:
        super().__init__(deadline)
        self.clock = clock

    @property
    def now(self) -> float:  # type: ignore[override]
        return self.clock.now

    def expect(self, sites: Sequence[str], train: Mapping[str, int], work: Workload) -> None:
        check_deadline(self.clock, self.deadline, sites)
        self.work, self.train = work, dict(train)

    def attend(self, plan: RoundPlan, sites: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        self.passing = passing = Passing(self.clock, self.work, self.deadline, self.train)
        there = passing.attend(plan, sites)
        return there, {site: self._why(plan, site) for site in passing.late}

    def _why(self, plan: RoundPlan, site: str) -> str:
        work = self.work
        timing = self.clock.timing(
            site, plan.round, work.examples(plan, self.train[site]), work.down, work.up
        )
        if timing is None:
            return VANISHED
        return f"{LATE}: {timing.total:.1f} s, and the deadline is {self.deadline:g} s"

    def tell(self, rule: AggregationRule, outcome: Outcome) -> dict[str, Timing]:
        found = {s: t for s, t in self.passing.answered.items() if s in outcome.facts}
        late = [*self.passing.late, *outcome.waited, *_failed(outcome)]
        _tell(rule, found, dict.fromkeys(late, lapse_seconds(self.deadline, found.values())))
        return found


def _failed(outcome: Outcome) -> list[str]:
    """Who answered, and not with an update that counts.

    Sites given up with the others, because too few could still answer, are silent and did nothing wrong.
    """
    return [site for site in outcome.absent if site not in outcome.silent]


def _tell(rule: AggregationRule, found: Mapping[str, Timing], waited: Mapping[str, float]) -> None:
    timed = rule.capability(NeedsLatencies)
    if timed is None:
        return
    for site, timing in sorted(found.items()):
        timed.observe_latency(site, timing)
    for site, seconds in sorted(waited.items()):
        timed.report_timeout(site, max(seconds, SHORTEST))


def timing_of(facts: Mapping[str, Any], trip: float) -> Timing:
    """Of a reply that came `trip` seconds after its task had left; what a site says is no more than that."""
    said, trip = facts.get("seconds"), max(trip, SHORTEST)
    plain = isinstance(said, int | float) and not isinstance(said, bool)
    seconds = as_float(said) if plain else math.nan
    compute = min(max(seconds, 0.0), trip) if math.isfinite(seconds) else trip
    return Timing(compute, trip - compute)


def workload(facts: Mapping[str, Any], down: int, up: int) -> Workload:
    """What a round costs a site, by what one said of its settings in `prepare`."""
    settings = description_of(facts).settings or facts.get("settings") or {}
    optimiser = settings.get("optimiser") or {}
    batch = settings.get("batch") or (optimiser.get("batch") or 1) * (optimiser.get("accumulate") or 1)
    epochs = settings.get("local_epochs") or 1
    return Workload(down=down, up=up, batch=int(batch), epochs=int(epochs))
