# SPDX-License-Identifier: Apache-2.0
"""The parts of one run at the server, and what it knows between rounds and within one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord, Traffic
from medflare.core.tensors import SharedSpec, State
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.channel import Channel
from medflare.federation.server.checkpoint_manager import CheckpointManager
from medflare.federation.server.late_updates import LateUpdates
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.quorum import Quorum
from medflare.federation.server.roster import Roster
from medflare.federation.server.run_recorder import RunRecorder
from medflare.federation.server.schedule import RoundSchedule
from medflare.federation.server.scorer import CrossScorer, Scorer
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.server.sketch_exchange import SketchExchange
from medflare.federation.server.timing import MeasuredTimings
from medflare.federation.server.update_limits import limited_weights
from medflare.protections.base import ServerProtection
from medflare.protections.registry import get_protection
from medflare.protocol.submitted_job import SubmittedJob
from medflare.worker.config import WorkerConfig
from medflare.worker.workers import Worker


@dataclass(slots=True, kw_only=True)
class GlobalModel:
    """Result of the last exchange of updates.

    Attributes:
        tensors: the shared tensors.
        totals: sums over the accepted updates' declared sums.
        summed: the sites of which those totals are.
    """

    tensors: State = field(default_factory=dict)
    totals: State = field(default_factory=dict)
    summed: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RoundState:
    """One exchange of updates: a round, or one of the exchanges that a temporal round goes through.

    Attributes:
        index: of the exchange, counted through the run.
        entry: its record.
        plan: what the selected sites are sent.
        selected: sites that shall train.
        available: those of them that do; all but in a simulation that lets sites vanish.
        may_be_lost: whether too few updates cost the exchange and not the run, because clients were sampled
            or vanished by simulation.
        quorum: updates it needs.
    """

    index: int
    entry: RoundRecord
    plan: RoundPlan
    selected: list[str]
    available: list[str]
    may_be_lost: bool
    quorum: Quorum


@dataclass(slots=True, kw_only=True)
class Run:
    """The parts of a run, composed by the controller; functions of `phases` and `round` work on them.

    Attributes:
        folder: of the run on the server's disk.
        workspace: FLARE's.
        submitted: method and settings of the job.
        make_worker: makes the worker in which the server scores updates.
        model: what the last exchange of updates made.
        agreed_hints: what sites agreed on before they train, as hints of every plan.
        declared: site -> facts of its answer to `prepare`; examples: site -> split -> count.
        shared_spec: names, shapes and dtypes of the shared tensors.
        scorer: scores candidates, for a rule that weighs updates by a loss.
        early_traffic: bytes of the exchanges before round 0, which the record counts to it.
        begun: steps before the first round that are done (`phases.begin`).
        lost_in_a_row: exchanges of updates that were lost since the last good one.
        late: updates of stragglers that come after their exchange.
        untested: sites without a final test, and why; empty for none.
    """

    args: RoundsSettings
    run_id: str
    folder: Path
    workspace: Any
    submitted: SubmittedJob
    channel: Channel
    roster: Roster
    aggregator: ValidatingAggregator
    protection: ServerProtection
    timings: MeasuredTimings
    checkpoints: CheckpointManager
    recorder: RunRecorder
    progress: ProgressReporter
    schedule: RoundSchedule
    sketches: SketchExchange
    late: LateUpdates
    make_worker: Callable[[WorkerConfig, Path], Worker]
    model: GlobalModel = field(default_factory=GlobalModel)
    agreed_hints: RoundHints = field(default_factory=RoundHints)
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    examples: dict[str, dict[str, int]] = field(default_factory=dict)
    shared_spec: SharedSpec = field(default_factory=dict)
    scorer: Scorer | CrossScorer | None = None
    early_traffic: dict[str, Traffic] = field(default_factory=dict)
    lost_in_a_row: int = 0
    begun: list[str] = field(default_factory=list)
    untested: str = ""

    @property
    def rule(self) -> AggregationRule:
        """The aggregation rule."""
        return self.aggregator.rule

    @property
    def exchanges(self) -> int:
        """Exchanges of updates in the run."""
        return self.args.num_rounds * self.schedule.exchanges_per_round

    @property
    def min_sites(self) -> int:
        """Least number of updates in a sum under the job's protection."""
        return get_protection(self.args.protection).min_sites

    def hints(self, exchange: int) -> RoundHints:
        """Return what sites are sent for an exchange beside the roster."""
        return self.schedule.hints(exchange) | self.agreed_hints | round_hints(self.rule)

    def measured_weights(self, split: str) -> dict[str, int]:
        """Return the examples of a split with which each site counts in means of what sites measured.

        What a site declares nobody can check: it has at most `max_share` of the weight, as its updates have.
        """
        declared = {site: counts.get(split, 0) for site, counts in self.examples.items()}
        return limited_weights(declared, self.args.max_share)

    def quorum(self, sampled: int | None = None) -> Quorum:
        """Return the quorum of an exchange; sampled: number of clients, None where all sites take part."""
        args = self.args
        quorum = Quorum.of_round(args.min_responses, len(self.roster.sites), sampled, self.min_sites)
        return replace(quorum, mandatory=frozenset(args.mandatory_sites), share=args.straggler_share)

    def round_quorum(self, sampled: int | None) -> Quorum:
        """Return the quorum of a round's updates; in mode `async` it ends with `buffer` of them."""
        if self.args.mode == "async":
            return Quorum(1, self.args.buffer)
        return self.quorum(sampled)
