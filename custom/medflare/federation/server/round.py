# SPDX-License-Identifier: Apache-2.0
"""One round of a federated run: select, broadcast, collect, validate, aggregate, record, checkpoint.

`run_round` shows all of it; the functions below it are its steps, in order. Where a rule samples its clients,
or a simulated clock makes some vanish, too few updates lose the exchange and the state stays as it is; where
all sites take part, a missed quorum ends the run.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from medflare.aggregation.capabilities import NeedsSumMembers, ProbesLosses, SamplesClients
from medflare.core.errors import RunError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord, Traffic
from medflare.core.tensors import State
from medflare.federation.server.channel import accept_any
from medflare.federation.server.client_sampling import probe_losses, probe_sites, sample_clients
from medflare.federation.server.quorum import ANY, Quorum
from medflare.federation.server.resume import capture
from medflare.federation.server.run import RoundState, Run
from medflare.federation.server.run_recorder import add_traffic, finite, weighted_means
from medflare.federation.server.summed_evaluation import validate_in_sum
from medflare.protections.base import UpcomingRound
from medflare.protocol.messages import EVALUATE, FIT, Reply, work_digest
from medflare.protocol.outcome import Outcome, TooFewError
from medflare.wire.compression import compress
from medflare.wire.digest import byte_count
from medflare.wire.plan_codec import plan_to_json


def run_round(run: Run, number: int, exchanges_done: int = 0) -> None:
    """Run one round, from the selection of clients to the checkpoint.

    An ordinary round is one exchange of updates, a temporal one goes through several, and `run.schedule` is
    the only one that knows.

    Args:
        exchanges_done: of the run, before a crash; those of this round among them are not repeated.

    Raises:
        TooFewError: too few updates came, or too many exchanges in a row were lost.
        RunError: the run cannot go on for another reason.
    """
    entry, exchanges = run.recorder.open_round(number), run.schedule.exchanges(number)
    started = time.monotonic() - entry.seconds
    if exchanges_done == number == 0:
        add_traffic(entry, run.early_traffic)
    for index in (index for index in exchanges if index >= exchanges_done):
        run.sketches.refresh(index)
        with run.schedule.record_exchange(entry, index, run.aggregator.weights) as exchange_entry:
            state = select_clients(run, index, exchange_entry)
            try:
                collect_updates(run, state)  # broadcast, and validate each update as it arrives
            except TooFewError as error:
                discard_unless_required(run, state, error)
            else:
                aggregate(run, state)
        if index != exchanges[-1]:
            entry.seconds = round(time.monotonic() - started, 3)
            save(run, index + 1)
    evaluate(run, entry)
    entry.seconds = round(time.monotonic() - started, 3)
    entry.simulated_seconds = run.timings.now
    checkpoint(run, number, entry)
    run.progress.event("round done", round=number, seconds=entry.seconds, mean=entry.mean)


# ---- select ------------------------------------------------------------------------------------------------


def select_clients(run: Run, index: int, entry: RoundRecord) -> RoundState:
    """Select who trains, and make their plan; everyone else is in the record with a reason."""
    args, busy = run.args, still_training(run, index)
    eligible = [site for site in run.roster.eligible(index) if site not in busy]
    declared = run.aggregator.weights
    min_clients = run.min_sites if run.protection.sealed else 1
    selected, not_sampled = sample_clients(run.rule, index, args.seed, declared, eligible, min_clients)
    entry.absent = run.roster.unavailable(index) | not_sampled | busy
    # After sampling, because a rule's hints may depend on whom it sampled.
    summed = tuple(run.roster.sites.index(site) for site in run.model.summed)
    plan = RoundPlan(
        round=index,
        rounds=run.exchanges,
        steps=args.steps,
        fraction=args.fraction,
        seed=args.seed,
        hints=run.hints(index) | RoundHints(summed=summed),
    )
    run.progress.event("round", round=index, rounds=run.exchanges, sites=selected)
    available, vanished = run.timings.simulate_availability(plan, selected)
    entry.absent |= vanished
    sampled = bool(run.rule.capability(SamplesClients) or vanished or args.mode == "async")
    return RoundState(
        index=index,
        entry=entry,
        plan=plan,
        selected=selected,
        available=available,
        may_be_lost=sampled,
        quorum=run.round_quorum(len(selected) if sampled else None),
    )


def still_training(run: Run, index: int) -> dict[str, str]:
    """Return site -> reason for stragglers whose late update will count; suspend those that are given up."""
    for site, reason in run.late.give_up().items():
        run.roster.suspend(site, index - 1, reason)
        run.progress.event("late update given up", round=index, site=site, reason=reason)
    return {
        site: f"still training since {run.schedule.name(exchange)}"
        for site, exchange in run.late.busy().items()
    }


# ---- broadcast, collect, validate --------------------------------------------------------------------------


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
        run.progress.event("kept update", round=plan.round, site=site, verdict=reason or "accepted")
    return outcome


def validate_update(run: Run, site: str, reply: Reply) -> str | None:
    """Pass an update to the aggregator and report what became of it; the reason if it was rejected."""
    reason = run.aggregator.accept(site, reply.round, reply.facts, reply.tensors, trip=reply.trip)
    run.progress.event(
        "update",
        round=reply.round,
        site=site,
        verdict=reason or "accepted",
        loss=finite(reply.facts.get("metrics", {})).get("loss"),
        bytes_sent=byte_count(reply.tensors),
        seconds=reply.facts.get("seconds"),
    )
    return reason


def receive_late(run: Run, exchange: int, site: str, reply: Reply) -> None:
    """Keep the reply of a straggler for the next exchange, or name why it is not kept."""
    reason = run.late.receive(site, exchange, reply)
    run.roster.record_replies([site], ())
    phase = "late update kept" if reason is None else "late update refused"
    run.progress.event(phase, round=exchange, site=site, **({"reason": reason} if reason else {}))


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
            "late update", round=index, site=site, since=exchange, verdict=reason or "accepted"
        )


def record_fit(run: Run, entry: RoundRecord, outcome: Outcome) -> None:
    """Write an exchange of updates into its record."""
    entry.accepted = dict(sorted(run.aggregator.accepted.items()))
    entry.late = {site: age for site, age in outcome.late.items() if site in entry.accepted}
    for site in entry.late:
        entry.absent.pop(site, None)
    add_traffic(entry, outcome.traffic)
    for site, facts in sorted(outcome.facts.items()):
        entry.metrics[site] = finite(run.schedule.measured(facts["metrics"]), "train")
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


# ---- lost exchanges ----------------------------------------------------------------------------------------


def discard_unless_required(run: Run, state: RoundState, error: TooFewError) -> None:
    """Discard an exchange that too few updates came to.

    Where every site was expected to take part, its absence is a fault that somebody must mend, so the error
    ends the run. Among sampled clients some fail as a matter of course; only many such exchanges in a row say
    that something is wrong.
    """
    if not state.may_be_lost:
        raise error
    discard_round(run, state.entry, state.selected, f"the round was lost: {error}")
    if run.lost_in_a_row > run.args.max_lost_rounds:
        raise error


def discard_unopened_sum(run: Run, entry: RoundRecord, error: RunError) -> None:
    """Discard an exchange whose sum cannot be opened; too many of them in a row end the run.

    The masked updates cannot be used any other way, and asking the same sites for a second sum over fewer of
    them would let the server subtract one from the other. So the exchange is given up as a whole.
    """
    entry.protection = {**run.protection.report(), "failed": str(error)}
    discard_round(run, entry, list(entry.accepted), f"the round's sum could not be opened: {error}")
    if run.lost_in_a_row > run.args.protection_settings.max_lost_rounds:
        raise error


def discard_result(run: Run, entry: RoundRecord, error: UpdateError) -> None:
    """Discard an exchange whose result cannot be used, because it is not finite; state and rule stay.

    Raises:
        RunError: too many exchanges in a row were lost.
    """
    run.aggregator.restore_rule()
    discard_round(run, entry, list(entry.accepted), f"the round's result could not be used: {error}")
    if run.lost_in_a_row > run.args.max_lost_rounds:
        raise RunError(f"{run.lost_in_a_row} rounds in a row were lost; the last: {error}")


def discard_round(run: Run, entry: RoundRecord, sites: list[str], reason: str) -> None:
    """Take back what a lost exchange's record says of `sites`; the state stays as it is."""
    for site in sites:
        entry.absent.setdefault(site, reason)
    entry.accepted, run.lost_in_a_row = {}, run.lost_in_a_row + 1
    run.aggregator.abort_round()
    if run.rule.capability(SamplesClients) and sites:
        entry.rule = run.aggregator.report()
    run.progress.event("round lost", round=entry.round, reason=reason)


# ---- aggregate ---------------------------------------------------------------------------------------------


def aggregate(run: Run, state: RoundState) -> None:
    """Make the accepted updates, sealed or not, the new state."""
    entry, sealed = state.entry, run.protection.sealed
    try:
        opened = not sealed or open_sum(run, state.plan, entry)
        if opened:
            members = run.rule.capability(NeedsSumMembers)
            if sealed and members is not None:
                members.set_sum_members(entry.accepted)
            run.model.tensors, run.model.totals, entry.checks = run.aggregator.finish()
            run.lost_in_a_row = 0
    except UpdateError as error:
        discard_result(run, entry, error)
        opened = False
    if opened:
        not_probed = probe(run, state)
        entry.rule = run.aggregator.report()
        if not_probed:
            entry.rule["not_probed"] = not_probed
        if not sealed:
            run.progress.weights(state.index, entry.rule)
    run.model.summed = sorted(entry.accepted)


def open_sum(run: Run, plan: RoundPlan, entry: RoundRecord) -> bool:
    """Open the sum of sealed updates; return whether it came to something the rule can work on."""
    try:
        update = run.protection.open_sum(run.channel.in_round(plan))
    except RunError as error:
        discard_unopened_sum(run, entry, error)
        return False
    run.protection.commit()
    entry.protection = run.protection.report()
    if update is None:
        run.lost_in_a_row = 0
        return False
    run.aggregator.add_sum(update)
    return True


def probe(run: Run, state: RoundState) -> dict[str, str]:
    """Do the second exchange of a rule that wants losses before the round ends.

    Returns:
        Site -> why it measured nothing, as where its policy keeps losses of training examples.
    """
    prober = run.rule.capability(ProbesLosses)
    wanted = prober.probe() if prober else None
    if prober is None or wanted is None:
        return {}
    plan = replace(state.plan, hints=run.agreed_hints | RoundHints(probe=wanted.examples))
    sites = probe_sites(wanted, run.roster.eligible(state.index))
    options = {"split": "train"}
    tensors = run.model.tensors if wanted.state is None else wanted.state
    outcome = run.channel.broadcast(EVALUATE, accept_any, sites, plan, tensors, options, quorum=ANY)
    add_traffic(state.entry, outcome.traffic)
    for site, reason in outcome.absent.items():
        run.progress.event("probe failed", round=state.index, site=site, reason=reason)
    prober.receive_losses(probe_losses(outcome))
    return outcome.absent


# ---- evaluate, checkpoint ----------------------------------------------------------------------------------


def evaluate(run: Run, entry: RoundRecord) -> None:
    """Measure the state on validation data of the sites, in the rounds in which the job wants it.

    Where clients are sampled every eligible site measures: a mean over those that happened to train would
    jump from round to round. A site that fails is named, and the round cannot be the best.
    """
    took_part = entry.accepted or any(exchange.accepted for exchange in entry.exchanges)
    every = run.args.evaluate_every
    if not took_part or not every or (entry.round + 1) % every:
        return
    last = run.schedule.exchanges(entry.round)[-1]
    plan = RoundPlan(
        round=last, rounds=run.exchanges, seed=run.args.seed, limit=run.args.limit, hints=run.agreed_hints
    )
    sampled = run.rule.capability(SamplesClients) is not None
    sites = run.roster.eligible(last) if sampled else sorted(entry.accepted)
    if run.protection.sealed:
        validate_in_sum(run, entry, plan, sites)
        return
    tensors, options = run.protection.outgoing(run.model.tensors, {})
    options = {"split": "val", **options}
    outcome = run.channel.broadcast(EVALUATE, accept_any, sites, plan, tensors, options, quorum=ANY)
    record_evaluation(run, entry, outcome, "val")


def record_evaluation(run: Run, entry: RoundRecord, outcome: Outcome, split: str) -> None:
    """Write an evaluation into a round's record; means only over a full set of sites."""
    add_traffic(entry, outcome.traffic)
    measured = {site: finite(facts["metrics"], split) for site, facts in sorted(outcome.facts.items())}
    for site, values in measured.items():
        entry.metrics.setdefault(site, {}).update(values)
        run.progress.curves(entry.round, site, values)
        run.progress.event(split, round=entry.round, site=site, **values)
    for site, reason in outcome.absent.items():
        run.progress.event(f"{split} failed", round=entry.round, site=site, reason=reason)
    if not outcome.absent:
        weights = {site: counts.get(split, 0) for site, counts in run.examples.items()}
        entry.mean |= weighted_means(measured, weights)


def checkpoint(run: Run, number: int, entry: RoundRecord) -> None:
    """Write the state to go on from, the best adapter if this is the best round, and the record."""
    tensors, _ = run.protection.outgoing(run.model.tensors, {})
    run.checkpoints.finish_round(number, entry, tensors, run.roster)
    save(run, run.schedule.exchanges(number)[-1] + 1)
    run.progress.curves(number, "mean", entry.mean)
    run.progress.curves(number, "server", entry.checks)


def save(run: Run, exchanges_done: int) -> None:
    """Write the state after so many exchanges; the updates that are in it are needed no longer."""
    run.checkpoints.save(capture(run, exchanges_done))
    run.aggregator.spool.clear()
