# SPDX-License-Identifier: Apache-2.0
"""Gives a rule that scores candidates what it scores them with: the server's own worker, or all sites."""

from __future__ import annotations

from medflare.aggregation.capabilities import ScoresCandidates
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.federation.server.channel import accept_any
from medflare.federation.server.quorum import ANY
from medflare.federation.server.run import Run
from medflare.federation.server.run_recorder import add_traffic, plausible_metrics
from medflare.federation.server.scorer import CrossScorer, Scorer, server_worker_config
from medflare.protocol.messages import EVALUATE


def open_scorer(run: Run) -> None:
    """Bind a scorer to the rule, if it wants one.

    Raises:
        RunError: the server has no data or model to score with, or others than the sites.
    """
    scored = run.rule.capability(ScoresCandidates)
    if scored is None:
        return
    run.scorer = _server_scorer(run) if scored.scored_by == "server" else _cross_scorer(run)
    run.aggregator.bind(run.scorer)


def _server_scorer(run: Run) -> Scorer:
    """Start the server's own scoring; its base model and tensors must be the sites'."""
    folder, channel = run.folder / "scorer", run.channel
    config = server_worker_config(run.workspace, run.submitted, run.run_id, run.args.seed, folder)
    worker = run.make_worker(config, folder)
    run.scorer = scorer = Scorer(
        worker, run.args.deadline, lambda: bool(channel.abort.triggered), run.progress.event
    )  # known to the run before it can fail, so that its worker is ended in any case
    scorer.prepare(run.declared, run.roster.sites)
    return scorer


def _cross_scorer(run: Run) -> CrossScorer:
    """Have all sites measure each candidate on their validation data."""

    def measure(plan: RoundPlan, candidate: State) -> dict[str, dict[str, float]]:
        sites, options = run.roster.eligible(plan.round), {"split": "val"}
        outcome = run.channel.broadcast(EVALUATE, accept_any, sites, plan, candidate, options, quorum=ANY)
        if run.recorder.record.rounds:
            add_traffic(run.recorder.record.rounds[-1], outcome.traffic)
        return {site: plausible_metrics(facts["metrics"]) for site, facts in sorted(outcome.facts.items())}

    return CrossScorer(measure, run.measured_weights("val"), run.progress.event)
