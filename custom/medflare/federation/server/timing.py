# SPDX-License-Identifier: Apache-2.0
"""Timings of sites in a round: as measured, or computed from declared profiles.

Computing is what a site reports it trained; transfer is the rest of the time between the task's leaving and
the reply's coming. Steps of a secure sum are exchanges of their own and count as neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import NeedsLatencies
from medflare.core.metrics import as_metric
from medflare.core.plan import RoundPlan
from medflare.core.timing import Timing
from medflare.federation.server.settings import RoundsSettings
from medflare.in_process.clocked_loop import SimulatedRound, Workload, check_deadline, timeout_seconds
from medflare.protocol.outcome import Outcome
from medflare.selection.clock import SimulatedClock, read_profiles

SHORTEST = 1e-6
"""Seconds; no reply takes none."""
VANISHED, LATE = "vanished (simulated)", "too late (simulated)"


class MeasuredTimings:
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
        """Take what is known before round 1. train: training examples of each site."""

    def go_on_at(self, seconds: float | None) -> None:
        """Take `now` of the moment at which the run's state was saved."""

    def simulate_availability(
        self, plan: RoundPlan, sites: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return (who of `sites` can train, reason for each of the others)."""
        return list(sites), {}

    def report_timings(self, rule: AggregationRule, outcome: Outcome) -> dict[str, Timing]:
        """Report to a rule that chooses by latency what accepted sites took, and who timed out.

        A site that was waited for is reported with those seconds. One that answered with an error, or whose
        update was refused, is as little use as one that never answers, and counts `timeout_seconds`.

        Returns:
            site -> timing of each accepted site.
        """
        trips = outcome.trips
        timings = {
            site: timing_of(facts, trips[site])
            for site, facts in sorted(outcome.facts.items())
            if site in trips
        }
        failed = dict.fromkeys(_failed(outcome), timeout_seconds(self.deadline, timings.values()))
        _report(rule, timings, failed | outcome.waited)
        return timings


class SimulatedTimings(MeasuredTimings):
    """Seconds of a simulated clock; a site that its profile makes vanish is sent nothing.

    Args:
        deadline: of an exchange, simulated seconds.
    """

    def __init__(self, clock: SimulatedClock, deadline: float) -> None:
        super().__init__(deadline)
        self.clock = clock

    @property
    def now(self) -> float:  # type: ignore[override]
        return self.clock.now

    def go_on_at(self, seconds: float | None) -> None:
        self.clock.now = seconds or 0.0

    def expect(self, sites: Sequence[str], train: Mapping[str, int], work: Workload) -> None:
        check_deadline(self.clock, self.deadline, sites)
        self.work, self.train = work, dict(train)

    def simulate_availability(
        self, plan: RoundPlan, sites: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        self.simulated = simulated = SimulatedRound(self.clock, self.work, self.deadline, self.train)
        available = simulated.available(plan, sites)
        return available, {site: self._why(plan, site) for site in simulated.late}

    def _why(self, plan: RoundPlan, site: str) -> str:
        work = self.work
        timing = self.clock.timing(
            site, plan.round, work.examples(plan, self.train[site]), work.down, work.up
        )
        if timing is None:
            return VANISHED
        return f"{LATE}: {timing.total:.1f} s, and the deadline is {self.deadline:g} s"

    def report_timings(self, rule: AggregationRule, outcome: Outcome) -> dict[str, Timing]:
        timings = {site: time for site, time in self.simulated.answered.items() if site in outcome.facts}
        late = [*self.simulated.late, *outcome.waited, *_failed(outcome)]
        _report(rule, timings, dict.fromkeys(late, timeout_seconds(self.deadline, timings.values())))
        return timings


def timings_of(args: RoundsSettings) -> MeasuredTimings:
    """Return seconds as they pass, or of the job's latency profiles."""
    if not args.latency_profiles:
        return MeasuredTimings(args.deadline)
    clock = SimulatedClock(read_profiles(args.latency_profiles), args.seed)
    return SimulatedTimings(clock, args.simulated_deadline or args.deadline)


def _failed(outcome: Outcome) -> list[str]:
    """Return who answered, and not with an update that counts.

    Sites given up with the others, because too few could still answer, are silent and did nothing wrong.
    """
    return [site for site in outcome.absent if site not in outcome.silent]


def _report(rule: AggregationRule, timings: Mapping[str, Timing], waited: Mapping[str, float]) -> None:
    timed = rule.capability(NeedsLatencies)
    if timed is None:
        return
    for site, timing in sorted(timings.items()):
        timed.observe_latency(site, timing)
    for site, seconds in sorted(waited.items()):
        timed.report_timeout(site, max(seconds, SHORTEST))


def timing_of(facts: Mapping[str, Any], trip: float) -> Timing:
    """Return the timing of a reply that came `trip` seconds after its task had left.

    The seconds that a site reports count up to that; without a plain number, all of it was computing.
    """
    reported, trip = facts.get("seconds"), max(trip, SHORTEST)
    plain = isinstance(reported, int | float) and not isinstance(reported, bool)
    seconds = as_metric(reported) if plain else math.nan
    compute = min(max(seconds, 0.0), trip) if math.isfinite(seconds) else trip
    return Timing(compute, trip - compute)


def workload(settings: Mapping[str, Any], down: int, up: int) -> Workload:
    """Return what a round costs a site, from the method's settings."""
    optimiser = settings.get("optimiser") or {}
    batch = settings.get("batch") or (optimiser.get("batch") or 1) * (optimiser.get("accumulate") or 1)
    epochs = settings.get("local_epochs") or 1
    return Workload(down=down, up=up, batch=int(batch), epochs=int(epochs))
