# SPDX-License-Identifier: Apache-2.0
"""Federated training in one process, timed by a simulated clock (issue 7, "Time").

What a site takes depends on its declared profile, on the bytes of its messages and on the examples it visits,
and on nothing that this machine is busy with: seconds to a target can be repeated to the last digit.
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
from medflare.core.update import Update
from medflare.in_process.loop import Loop, MakePlan
from medflare.selection.clock import SimulatedClock, seconds_to_target
from medflare.selection.latency import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a round costs every site, as a simulated clock counts it.

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
        """How many examples a site of `size` training examples visits, over all passes."""
        whole = plan.steps is None and plan.fraction is None
        return examples_to_visit(plan, size, self.batch) * (self.epochs if whole else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedRound:
    """One round by the simulated clock.

    Attributes:
        began, ended: seconds since the run began.
        timings: of the sites that answered in time, also with what the rule refused; vanished: drawn, and
            silent until the deadline.
        metrics: what `on_round` measured.
    """

    number: int
    began: float
    ended: float
    timings: Mapping[str, Timing]
    vanished: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For a study's record."""
        return {
            "number": self.number,
            "began": self.began,
            "ended": self.ended,
            "timings": {site: list(timing) for site, timing in self.timings.items()},
            "vanished": list(self.vanished),
            "metrics": dict(self.metrics),
        }


@dataclass(slots=True, kw_only=True)
class Clocked:
    """A run: its last state and its rounds."""

    state: State
    rounds: list[ClockedRound] = field(default_factory=list)

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """(simulated seconds, value) of the rounds that measured it."""
        return [(entry.ended, entry.metrics[metric]) for entry in self.rounds if metric in entry.metrics]

    def seconds_to(self, metric: str, target: float) -> float | None:
        """When the metric first reached `target`; None where it never did."""
        return seconds_to_target(self.curve(metric), target)


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
) -> Clocked:
    """As `loop.federate`, where every site takes the seconds of its profile.

    A site that vanishes, or is late, gives no update and keeps its local state; where all do, the state stays
    as it is. Rules that need latencies are told after each round who took how long, and who lapsed: vanished,
    was late, or gave an update that the rule refused.

    Args:
        deadline: simulated seconds of a round; ConfigError without one where a profile may vanish.
        on_round: as in `federate`; the metrics that it returns go into the curve.
        budget: simulated seconds after which no further round begins.
    """
    check_deadline(clock, deadline, sorted(learners))
    loop = Loop(learners, rule, make_plan, state)
    found = Clocked(state=loop.state)
    for number in range(rounds):
        if clock.now >= budget:
            break
        began, passing = clock.now, Passing(clock, work, deadline, loop.train)
        updates = loop.round(number, passing.attend)
        passing.tell(rule, updates)
        measured = on_round(number, loop.state, updates) if on_round is not None else None
        entry = ClockedRound(
            number=number,
            began=began,
            ended=clock.now,
            timings=passing.answered,
            vanished=tuple(passing.late),
            metrics=dict(measured or {}),
        )
        found.state, found.rounds = loop.state, [*found.rounds, entry]
    return found


class Passing:
    """One round's time.

    Attributes:
        answered: the timings of the sites that answered in time; late: those that did not.
    """

    def __init__(
        self, clock: SimulatedClock, work: Workload, deadline: float, train: Mapping[str, int]
    ) -> None:
        self.clock, self.work, self.deadline, self.train = clock, work, deadline, train
        self.answered: dict[str, Timing] = {}
        self.late: list[str] = []

    def attend(self, plan: RoundPlan, asked: Sequence[str]) -> list[str]:
        """Lets the round pass on the clock; who of `asked` answers in time, in order of name."""
        work = self.work
        timings = {
            s: self.clock.timing(s, plan.round, work.examples(plan, self.train[s]), work.down, work.up)
            for s in sorted(asked)
        }
        self.late = self.clock.advance(timings, self.deadline)
        self.answered = {s: t for s, t in timings.items() if t is not None and s not in self.late}
        return list(self.answered)

    def tell(self, rule: AggregationRule, accepted: Collection[str]) -> None:
        """What the round took each site, to a rule that asks; who has no update among `accepted` lapses."""
        timed = rule.capability(NeedsLatencies)
        if timed is None:
            return
        lost = lapse_seconds(self.deadline, self.answered.values())
        for site, timing in self.answered.items():
            if site in accepted:
                timed.observe_latency(site, timing)
            else:
                timed.report_timeout(site, lost)
        for site in self.late:
            timed.report_timeout(site, self.deadline)


def lapse_seconds(deadline: float, timings: Iterable[Timing]) -> float:
    """What a site is taken to need that answered with nothing of use: the deadline, as one that is silent.

    Without a deadline the seconds of the slowest answer of the round, of which `timings` are; 0 for none.
    """
    if math.isfinite(deadline):
        return deadline
    return max((timing.total for timing in timings), default=0.0)


def check_deadline(clock: SimulatedClock, deadline: float, sites: Sequence[str]) -> None:
    """ConfigError for sites without a profile, and for those that may vanish with no deadline to end it."""
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
