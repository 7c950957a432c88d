# SPDX-License-Identifier: Apache-2.0
"""One round of a federated run: select, broadcast, collect, validate, aggregate, record, checkpoint.

`run_round` shows all of it; its steps are below it and, in the middle, in `collection.py` and
`lost_rounds.py`. Where a rule samples its clients, or a simulated clock makes some vanish, too few updates
lose the exchange and the state stays as it is; where all sites take part, a missed quorum ends the run.
"""

from __future__ import annotations

import time
from dataclasses import replace

from medflare.aggregation.capabilities import NeedsSumMembers, ProbesLosses, SamplesClients
from medflare.core.errors import RunError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.federation.server.channel import accept_any
from medflare.federation.server.client_sampling import probe_losses, probe_sites, sample_clients
from medflare.federation.server.collection import collect_updates
from medflare.federation.server.lost_rounds import (
    discard_result,
    discard_unless_required,
    discard_unopened_sum,
)
from medflare.federation.server.quorum import ANY
from medflare.federation.server.resume import capture
from medflare.federation.server.run import RoundState, Run
from medflare.federation.server.run_recorder import add_traffic, plausible_metrics, weighted_means
from medflare.federation.server.summed_evaluation import validate_in_sum
from medflare.protocol.messages import EVALUATE
from medflare.protocol.outcome import Outcome, TooFewError


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
    run.progress.event("round", **run.schedule.place(index), rounds=args.num_rounds, sites=selected)
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
            run.progress.weights(state.index, run.schedule.place(state.index), entry.rule)
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
    measured = {
        site: plausible_metrics(facts["metrics"], split) for site, facts in sorted(outcome.facts.items())
    }
    for site, values in measured.items():
        entry.metrics.setdefault(site, {}).update(values)
        run.progress.curves(entry.round, site, values)
        run.progress.event(split, round=entry.round, site=site, **values)
    for site, reason in outcome.absent.items():
        run.progress.event(f"{split} failed", round=entry.round, site=site, reason=reason)
    if not outcome.absent:
        entry.mean |= weighted_means(measured, run.measured_weights(split))


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
