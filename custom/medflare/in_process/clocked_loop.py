# SPDX-License-Identifier: Apache-2.0
"""Federated training in one process, timed by a simulated clock.

A site's seconds depend on its declared latency profile, the bytes of its messages and the examples it visits,
not on this machine's load: seconds to a target can be repeated to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import NeedsLatencies
from medflare.core.data_order import examples_to_visit
from medflare.core.errors import ConfigError
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.timing import Timing
from medflare.core.update import Update
from medflare.in_process.loop import FederationLoop, MakePlan
from medflare.selection.clock import SimulatedClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Cost of a round at every site, as a simulated clock counts it.

    Attributes:
        down, up: bytes of the messages to and from a site, as `federation.compression.message_bytes` has them
            for the job's downlink and uplink.
        batch, epochs: of the sites' training; epochs count where a plan names neither steps nor a fraction.
    """

    down: int
    up: int
    batch: int = 1
    epochs: int = 1

    def examples(self, plan: RoundPlan, size: int) -> int:
        """Return how many examples a site of `size` training examples visits, over all passes."""
        full_passes = plan.steps is None and plan.fraction is None
        return examples_to_visit(plan, size, self.batch) * (self.epochs if full_passes else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedRound:
    """One round by the simulated clock.

    Attributes:
        began, ended: seconds since the run began.
        timings: of the sites that answered in time, also with what the rule refused.
        vanished: sampled sites that did not answer before the deadline.
        metrics: what `on_round` measured.
    """

    number: int
    began: float
    ended: float
    timings: Mapping[str, Timing]
    vanished: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the round as a study records it."""
        return {
            "number": self.number,
            "began": self.began,
            "ended": self.ended,
            "timings": {site: list(timing) for site, timing in self.timings.items()},
            "vanished": list(self.vanished),
            "metrics": dict(self.metrics),
        }


@dataclass(slots=True, kw_only=True)
class ClockedRun:
    """A run: its last state and its rounds."""

    state: State
    rounds: list[ClockedRound] = field(default_factory=list)


OnClocked = Callable[[int, State, Mapping[str, Update]], Mapping[str, float] | None]


def federate_clocked(
    learners: Mapping[str, Learner],
    rule: AggregationRule,
    rounds: int,
    make_plan: MakePlan,
    clock: SimulatedClock,
    work: Workload,
    deadline: float = math.inf,
    on_round: OnClocked | None = None,
    state: State | None = None,
    budget: float = math.inf,
) -> ClockedRun:
    """Run `loop.federate` on a simulated clock, where every site takes the seconds of its profile.

    A site that vanishes, or is late, gives no update and keeps its local state; where all do, the state stays
    as it is. Rules that need latencies get them after each round, and the timeouts: of sites that vanished,
    were late, or gave an update that the rule refused.

    Args:
        deadline: simulated seconds of a round; ConfigError without one where a profile may vanish.
        on_round: as in `federate`; the metrics that it returns go into the curve.
        budget: simulated seconds after which no further round begins.
    """
    check_deadline(clock, deadline, sorted(learners))
    loop = FederationLoop(learners, rule, make_plan, state)
    run = ClockedRun(state=loop.state)
    for number in range(rounds):
        if clock.now >= budget:
            break
        began, simulated = clock.now, SimulatedRound(clock, work, deadline, loop.train)
        updates = loop.round(number, simulated.available)
        simulated.report(rule, updates)
        measured = on_round(number, loop.state, updates) if on_round is not None else None
        entry = ClockedRound(
            number=number,
            began=began,
            ended=clock.now,
            timings=simulated.answered,
            vanished=tuple(simulated.late),
            metrics=dict(measured or {}),
        )
        run.state, run.rounds = loop.state, [*run.rounds, entry]
    return run


class SimulatedRound:
    """One round on the simulated clock.

    Attributes:
        answered: timings of the sites that answered in time.
        late: the sites that did not.
    """

    def __init__(
        self, clock: SimulatedClock, work: Workload, deadline: float, train: Mapping[str, int]
    ) -> None:
        self.clock, self.work, self.deadline, self.train = clock, work, deadline, train
        self.answered: dict[str, Timing] = {}
        self.late: list[str] = []

    def available(self, plan: RoundPlan, selected: Sequence[str]) -> list[str]:
        """Advance the clock by the round; return which of `selected` answer in time, in order of name."""
        work = self.work
        timings = {
            s: self.clock.timing(s, plan.round, work.examples(plan, self.train[s]), work.down, work.up)
            for s in sorted(selected)
        }
        self.late = self.clock.advance(timings, self.deadline)
        self.answered = {s: t for s, t in timings.items() if t is not None and s not in self.late}
        return list(self.answered)

    def report(self, rule: AggregationRule, accepted: Collection[str]) -> None:
        """Report each site's seconds to a rule that needs them; a timeout without an accepted update."""
        timed = rule.capability(NeedsLatencies)
        if timed is None:
            return
        timeout = timeout_seconds(self.deadline, self.answered.values())
        for site, timing in self.answered.items():
            if site in accepted:
                timed.observe_latency(site, timing)
            else:
                timed.report_timeout(site, timeout)
        for site in self.late:
            timed.report_timeout(site, self.deadline)


def timeout_seconds(deadline: float, timings: Iterable[Timing]) -> float:
    """Return the seconds counted for a site whose answer was of no use: the deadline, as for a silent site.

    Without a deadline, those of the slowest answer of the round, of which `timings` are; 0 for none.
    """
    if math.isfinite(deadline):
        return deadline
    return max((timing.total for timing in timings), default=0.0)


def check_deadline(clock: SimulatedClock, deadline: float, sites: Sequence[str]) -> None:
    """Raise ConfigError for a site without a profile, or one that may vanish without a deadline."""
    without = [site for site in sites if site not in clock.profiles]
    if without:
        raise ConfigError(
            f"no latency profile for {', '.join(without)}. Give every site one; there are profiles for "
            f"{', '.join(sorted(clock.profiles)) or 'none'}."
        )
    unsure = [site for site in sites if clock.profiles[site].reliability < 1]
    if unsure and deadline == math.inf:
        raise ConfigError(
            f"the profiles of {', '.join(unsure)} let them vanish (reliability below 1), and no deadline "
            "ends the wait for them. Set a deadline in seconds."
        )
