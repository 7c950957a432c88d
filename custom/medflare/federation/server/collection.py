# SPDX-License-Identifier: Apache-2.0
"""The middle of a round: broadcast the plan, collect updates and validate each as it arrives."""

from __future__ import annotations

from functools import partial

from medflare.aggregation.capabilities import SamplesClients
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord, Traffic
from medflare.core.tensors import State
from medflare.federation.server.quorum import Quorum
from medflare.federation.server.run import RoundState, Run
from medflare.federation.server.run_recorder import add_traffic, plausible_metrics, weighted_means
from medflare.protections.base import UpcomingRound
from medflare.protocol.messages import FIT, Reply, work_digest
from medflare.protocol.outcome import Outcome, TooFewError
from medflare.wire.compression import compress
from medflare.wire.digest import byte_count
from medflare.wire.plan_codec import plan_to_json


def collect_updates(run: Run, state: RoundState) -> None:
    """Collect the updates of the selected sites, and report to the rule how long each took.

    Raises:
        TooFewError: not enough of them came.
    """
    entry = state.entry
    vanished = {site: entry.absent[site] for site in state.selected if site not in state.available}
    outcome = Outcome(absent=vanished)
    try:
        busy = len(run.late.busy()) if run.args.mode == "async" else 0
        if len(state.available) + busy >= state.quorum.required:
            outcome = train(run, state.plan, state.available, state.quorum)
            record_fit(run, entry, outcome)
    except TooFewError as error:
        outcome = error.outcome
        record_absent(run, entry, outcome)
        raise
    finally:  # a rule that chooses by latency learns from lost exchanges too
        timings = run.timings.report_timings(run.rule, outcome)
        entry.timings = {site: timing._asdict() for site, timing in timings.items()}
    quorum, name = state.quorum, run.schedule.name(state.index)
    run.channel.require(outcome, quorum.required, name, state.index, quorum.mandatory)


def train(run: Run, plan: RoundPlan, sites: list[str], quorum: Quorum, canary: bool = False) -> Outcome:
    """Have sites train and validate their updates; before it, go through the protection's steps.

    Args:
        canary: whether the updates will be thrown away.
    """
    tensors, state_options = run.protection.outgoing(run.model.tensors, run.model.totals)
    upcoming = UpcomingRound(
        number=plan.round,
        sites=sites,
        quorum=quorum.required,
        work=run.channel.digest_work(plan, tensors),
        canary=canary,
    )
    opened = run.protection.open_round(upcoming, run.channel.in_round(plan, quorum.min_responses))
    lost_early = Outcome(
        facts={site: {} for site in opened.sites},
        absent=opened.absent,
        silent=opened.silent,
        waited=opened.waited,
    )
    late, on_late = [] if canary else sorted(run.late.busy()), None
    before = f"{run.schedule.name(plan.round)}, before training"
    run.channel.require(lost_early, 0 if late else quorum.required, before, plan.round)
    if run.late.kept and not canary:
        run.late.begin(plan.round)
        on_late = partial(receive_late, run, plan.round)
    run.aggregator.begin(plan.round, run.model.tensors, [*opened.sites, *late])
    kept = take_kept_updates(run, plan, tensors, [] if canary else opened.sites)
    outcome = run.channel.broadcast(
        FIT,
        lambda site, reply: validate_update(run, site, reply),
        [site for site in opened.sites if site not in kept.facts and site not in kept.absent],
        plan,
        tensors,
        {**({"canary": True} if canary else {}), **opened.options, **state_options},
        quorum=quorum.without(kept.facts),
        on_done=run.aggregator.mark_done,
        on_late=on_late,
        counting=run.late.count if run.args.mode == "async" and not canary else None,
    )
    if run.scorer is not None:
        run.scorer.plan = plan
    outcome.include(kept)
    if late:
        add_late_updates(run, plan.round, outcome)
    outcome.refuse(run.aggregator.flush())
    outcome.absent |= opened.absent
    outcome.silent += opened.silent
    outcome.waited |= opened.waited
    return outcome


def take_kept_updates(run: Run, plan: RoundPlan, tensors: State, sites: list[str]) -> Outcome:
    """Take the updates that an earlier process of the run accepted for this very request.

    Args:
        tensors: that the sites are sent. sites: who takes part; none for a canary, which is repeated whole.

    Returns:
        Whose update needs not be asked for again.
    """
    outcome, spool = Outcome(), run.aggregator.spool
    if run.protection.sealed or not sites:
        spool.begin(plan.round)
        return outcome
    spool.begin(plan.round, work_digest(plan_to_json(plan), tensors))
    for site, reply in spool.kept(sites).items():
        reason = run.aggregator.accept(site, reply.round, reply.facts, reply.tensors, spooled=True)
        if reason is not None:
            outcome.absent[site] = reason
        else:
            outcome.facts[site], outcome.trips[site] = reply.facts, reply.trip
            received = byte_count(compress(tensors, run.args.downlink))
            outcome.traffic[site] = Traffic(sent=byte_count(reply.tensors), received=received)
        place = run.schedule.place(plan.round)
        run.progress.event("kept update", **place, site=site, verdict=reason or "accepted")
    return outcome


def validate_update(run: Run, site: str, reply: Reply) -> str | None:
    """Pass an update to the aggregator and report what became of it; the reason if it was rejected."""
    reason = run.aggregator.accept(site, reply.round, reply.facts, reply.tensors, trip=reply.trip)
    run.progress.event(
        "update",
        **run.schedule.place(reply.round),
        site=site,
        verdict=reason or "accepted",
        loss=plausible_metrics(reply.facts.get("metrics", {})).get("loss"),
        bytes_sent=byte_count(reply.tensors),
        seconds=reply.facts.get("seconds"),
    )
    return reason


def receive_late(run: Run, exchange: int, site: str, reply: Reply) -> None:
    """Keep the reply of a straggler for the next exchange, or name why it is not kept."""
    reason = run.late.receive(site, exchange, reply)
    run.roster.record_replies([site], ())
    phase = "late update kept" if reason is None else "late update refused"
    why = {"reason": reason} if reason else {}
    run.progress.event(phase, **run.schedule.place(exchange), site=site, **why)


def add_late_updates(run: Run, index: int, outcome: Outcome) -> None:
    """Pass on the updates of stragglers that came since the last exchange, weighted as the job says."""
    for site, (exchange, reply) in run.late.take().items():
        staleness = index - exchange
        weight = run.late.weight(staleness)
        reason = run.aggregator.accept(
            site, index, reply.facts, reply.tensors, weight, trip=reply.trip, late=True
        )
        outcome.traffic.setdefault(site, Traffic()).sent += byte_count(reply.tensors)
        if reason is None:
            outcome.facts[site] = reply.facts
            outcome.late[site] = staleness
        else:
            outcome.absent[site] = f"late update: {reason}"
        run.progress.event(
            "late update",
            **run.schedule.place(index),
            site=site,
            since=run.schedule.name(exchange),
            verdict=reason or "accepted",
        )


def record_fit(run: Run, entry: RoundRecord, outcome: Outcome) -> None:
    """Write an exchange of updates into its record."""
    entry.accepted = dict(sorted(run.aggregator.accepted.items()))
    entry.late = {site: age for site, age in outcome.late.items() if site in entry.accepted}
    for site in entry.late:
        entry.absent.pop(site, None)
    add_traffic(entry, outcome.traffic)
    for site, facts in sorted(outcome.facts.items()):
        entry.metrics[site] = plausible_metrics(run.schedule.measured(facts["metrics"]), "train")
        run.progress.curves(entry.round, site, entry.metrics[site])
    entry.mean = weighted_means(entry.metrics, entry.accepted)
    for site, reason in run.aggregator.refused.items():
        run.progress.event("update refused", round=entry.round, site=site, reason=reason)
    record_absent(run, entry, outcome)
    run.recorder.write()


def record_absent(run: Run, entry: RoundRecord, outcome: Outcome) -> None:
    """Name who is missing from an exchange of updates, and suspend who was silent.

    A rule that samples clients weighs probabilities and latencies itself: a suspension would shift its
    sample to all others.
    """
    entry.absent |= outcome.absent
    if run.rule.capability(SamplesClients):
        return
    waiting = {}
    for site in outcome.silent:
        if run.late.kept and site in outcome.too_slow:
            waiting[site] = run.args.deadline + run.args.margin - outcome.waited[site]
        else:
            run.roster.suspend(site, entry.round, outcome.absent[site])
    if run.late.kept:
        run.late.expect(waiting, entry.round, outcome.release)
