# SPDX-License-Identifier: Apache-2.0
"""A run around its rounds: prepare, initialise, agree, canary before them, the final test after them.

Every site of the roster is in each round's record, accepted or absent with a reason; after each round the
state is on disk, and a run that cannot go on leaves its last good state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from medflare.aggregation.capabilities import NeedsExactSizes, round_hints
from medflare.core.errors import RunError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.site_description import description_of
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.federation.server.canary_estimate import HOPELESS, advice, estimate_round, too_full, too_slow
from medflare.federation.server.channel import accept_any
from medflare.federation.server.collection import train
from medflare.federation.server.exact_comparison import compare_graphs
from medflare.federation.server.first_values import FirstValues
from medflare.federation.server.mixture import fit_mixture, mixture_to_fit
from medflare.federation.server.preparation import agree, best_warning, rate_warning, require_shared_notes
from medflare.federation.server.quorum import ANY
from medflare.federation.server.resume import capture, restore
from medflare.federation.server.roster import join_reasons
from medflare.federation.server.round import run_round
from medflare.federation.server.run import GlobalModel, Run
from medflare.federation.server.run_recorder import add_traffic
from medflare.federation.server.run_values import SavedRun
from medflare.federation.server.scoring import open_scorer
from medflare.federation.server.sketch_exchange import wants_sketches
from medflare.federation.server.summed_evaluation import finish_in_sum
from medflare.federation.server.timing import workload
from medflare.federation.server.update_limits import limited_weights
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.protections.base import RunDeclaration
from medflare.protections.weighting import UpdateWeighting
from medflare.protocol.messages import FINISH, INITIALISE, PREPARE, Reply
from medflare.wire.compression import decompress, message_bytes


class PausedError(Exception):
    """Somebody asked for a pause, and a round is over."""


def run_all(run: Run, mixture: MixtureSettings | None = None, saved: SavedRun | None = None) -> None:
    """Run everything from preparation to the final tests.

    Args:
        mixture: of patients' profiles, if the job names one.
        saved: the state from which an earlier job's run goes on; None to begin.

    Raises:
        PausedError: after a round at whose end somebody wanted the run to pause.
    """
    to_fit = mixture_to_fit(mixture, run.args.protection)
    prepare(run, {"mixture": {"components": to_fit.components}} if to_fit else {})
    if saved is not None:
        restore(run, saved)
    begin(run, to_fit)
    exchanges_done = saved.state.exchanges_done if saved else 0
    for number in range(exchanges_done // run.schedule.exchanges_per_round, run.args.num_rounds):
        run_round(run, number, exchanges_done)
        if number + 1 == run.args.evaluate_every:
            warn(run, best_warning(run.args.best_metric, run.recorder.record.rounds[-1].mean))
        if run.checkpoints.store.take_pause():
            raise PausedError
    run.late.close()
    final_test(run)


def begin(run: Run, to_fit: MixtureSettings | None) -> None:
    """Do what comes once in a run, before its first round, as far as an earlier job has not done it.

    The state is written after each step: no site gives first values twice, or joins a canary twice.
    """
    steps: dict[str, Callable[[], None]] = {"first values": lambda: take_first_values(run)}
    if to_fit:
        steps["mixture"] = lambda: fit_mixture(run, to_fit)
    if wants_sketches(run.rule):
        steps["sketches"] = lambda: run.sketches.refresh(-1)
    if run.rule.capability(NeedsExactSizes):
        steps["exact sizes"] = lambda: compare_graphs(run.rule, run.channel, run.recorder, run.progress)
    if run.args.canary:
        steps["canary"] = lambda: run_canary(run)
    for name, step in steps.items():
        if name not in run.begun:
            step()
            run.begun.append(name)
            run.checkpoints.save(capture(run, 0))


def take_first_values(run: Run) -> None:
    """Begin with the shared tensors that a site gives."""
    run.model = GlobalModel(tensors=initialise(run))


def prepare(run: Run, further_options: Mapping[str, Any]) -> None:
    """Ask every site what it is and has; backbones and shared tensors must agree before round 1.

    Args:
        further_options: what else sites are asked to declare.
    """
    hints = round_hints(run.rule)
    options = {
        "job": run.args.job,
        "settings_sha256": run.submitted.digest,
        "hints": hints.to_json(),
        **further_options,
    }
    quorum = run.quorum().everybody()
    # Suspended ones too: in a run that goes on they are eligible again later, and then nobody asks.
    sites = run.roster.members()
    run.progress.event("preparing", sites=sites)
    outcome = run.channel.broadcast(PREPARE, accept_any, sites, options=options, quorum=quorum)
    run.channel.require(outcome, quorum.required, "prepare")
    run.declared = outcome.facts
    for site, reason in outcome.absent.items():
        run.roster.exclude(site, f"prepare failed: {reason}")
    agreed = agree(outcome.facts, run.roster.sites, quorum.required)
    exclude(run, agreed.excluded)
    if hints.influence is not None:
        exclude(run, require_shared_notes(run.declared, quorum.required))
    run.shared_spec = agreed.shared
    run.examples = {site: agreed.examples[site] for site in run.declared}
    declare(run, agreed.sums)
    warn(run, rate_warning(run.submitted.method, run.submitted.settings, run.declared))
    open_scorer(run)
    if run.args.evaluate_every and not run.protection.readable:
        run.progress.event("no validation", reason="its numbers stay at the sites under encryption")
    run.progress.event("prepared", sites=run.roster.sites, seconds=round(outcome.seconds, 2))


def warn(run: Run, reason: str) -> None:
    """Report what is likely to spoil a run, and put it on record; nothing where there is no reason."""
    if reason:
        run.progress.event("warning", reason=reason)
        run.recorder.record.preparation.setdefault("warnings", []).append(reason)


def exclude(run: Run, reasons: Mapping[str, str]) -> None:
    """Leave sites out of the run that cannot train with the others."""
    for site, reason in reasons.items():
        run.roster.exclude(site, reason)
        run.progress.event("excluded", site=site, reason=reason)
    run.declared = {site: facts for site, facts in run.declared.items() if site not in reasons}


def declare(run: Run, sums: SharedSpec) -> None:
    """Hand what the sites declared to the parts of the run that need it."""
    shared, facts = run.shared_spec, run.declared
    train_examples = {site: counts.get("train", 0) for site, counts in run.examples.items()}
    weights = limited_weights(train_examples, run.args.max_share)
    for site in sorted(site for site, count in weights.items() if count < train_examples[site]):
        run.progress.event(
            "weight limited", site=site, declared=train_examples[site], counts_with=weights[site]
        )
    run.aggregator.expect(shared, sums, train_examples, weights)
    run.protection.expect(
        RunDeclaration(
            run_id=run.run_id,
            shared=shared,
            sums=sums,
            weighting=UpdateWeighting.of(run.rule, weights, run.aggregator.accepts_zero_weight),
            rounds=run.exchanges,
            site_facts={site: description_of(answer, site).protection for site, answer in facts.items()},
            attempt=run.checkpoints.store.attempt,
            folder=run.checkpoints.store.path,
        )
    )
    bytes_up = run.protection.bytes_up(shared, run.args.uplink)
    run.recorder.record.method = run.submitted.method
    run.checkpoints.expect(facts, shared, bytes_up)
    settings = run.recorder.record.configuration["settings"] = run.submitted.resolved()
    bytes_down = run.recorder.record.expected_bytes_down
    work = workload(settings, bytes_down, bytes_up or message_bytes(shared, run.args.uplink))
    run.timings.expect(run.roster.sites, train_examples, work)


def initialise(run: Run) -> State:
    """Return the shared tensors before round 1, from the first site whose values are those of most sites."""
    initial, absent, early = dict[str, Any](), dict[str, str](), RoundRecord(round=0, seconds=0.0)
    expected = FirstValues.of(run.declared, run.shared_spec, run.roster.eligible(0))

    def take(site: str, reply: Reply) -> str | None:
        tensors = decompress(reply.tensors)
        check_state(tensors, run.shared_spec, f"initial tensors of site '{site}'")
        expected.check(tensors, site)
        initial.update(tensors)
        return None

    for site, reason in expected.differing.items():
        run.progress.event("first values differ", site=site, reason=reason)
    for site in expected.candidates():
        outcome = run.channel.broadcast(INITIALISE, take, sites=[site], quorum=ANY)
        add_traffic(early, outcome.traffic)
        absent |= outcome.absent
        if initial:
            run.recorder.record.preparation["first_values"] = expected.report(site)
            break
        run.progress.event("no initial state", site=site, reason=absent[site])
    if not initial:
        raise RunError(f"no initial state: {join_reasons(absent, run.roster.sites)}")
    run.early_traffic = early.traffic
    return {name: value.to(run.shared_spec[name][1]) for name, value in initial.items()}


def run_canary(run: Run) -> None:
    """Have every site train one step; its updates are checked like any other and thrown away."""
    plan = RoundPlan(round=0, rounds=run.exchanges, steps=1, seed=run.args.seed, hints=run.hints(0))
    sites, quorum = run.roster.eligible(0), run.quorum()
    outcome = train(run, plan, sites, quorum, canary=True)
    for site in sites:
        traffic = outcome.traffic.get(site)
        run.progress.event(
            "canary",
            site=site,
            verdict=outcome.absent.get(site, "accepted"),
            seconds=outcome.facts.get(site, {}).get("seconds"),
            bytes_sent=traffic.sent if traffic else 0,
            bytes_received=traffic.received if traffic else 0,
        )
    run.channel.require(outcome, quorum.required, "the canary round")
    if run.protection.sealed:
        run.protection.open_sum(run.channel.in_round(plan))
    compare_with_deadline(run, outcome.facts, len(sites) - quorum.required)


def compare_with_deadline(run: Run, facts: Mapping[str, Mapping[str, Any]], dispensable: int) -> None:
    """Estimate a round by the canary's step, put it on record, and refuse a run whose rounds cannot succeed.

    Args:
        facts: site -> facts of its reply in the canary.
        dispensable: sites that may miss a round.

    Raises:
        RunError: more sites than that need more than HOPELESS times the deadline.
    """
    args, record = run.args, run.recorder.record
    plan = RoundPlan(round=0, rounds=run.exchanges, steps=args.steps, fraction=args.fraction, seed=args.seed)
    work = workload(record.configuration["settings"], 0, 0)
    found = {
        site: estimate_round(answer, plan, work, run.examples[site].get("train", 0))
        for site, answer in sorted(facts.items())
    }
    estimates = {site: estimate for site, estimate in found.items() if estimate is not None}
    shown = {site: estimate.to_json() for site, estimate in estimates.items()}
    record.preparation["canary"] = {"deadline": args.deadline, "sites": shown}
    for site, estimate in shown.items():
        run.progress.event("a round takes about", site=site, **estimate)
    hopeless = too_slow(estimates, args.deadline, HOPELESS)
    if len(hopeless) > dispensable:
        raise RunError(f"no round would succeed: {advice(hopeless, estimates, args.deadline)}")
    if slow := too_slow(estimates, args.deadline):
        warn(run, advice(slow, estimates, args.deadline))
    warn(run, too_full(estimates))


def final_test(run: Run) -> None:
    """Measure the test quality of all sites that began the run, with the final state."""
    args, last = run.args, run.exchanges
    plan = RoundPlan(round=last, rounds=last, seed=args.seed, limit=args.final_limit, hints=run.agreed_hints)
    tensors, options = run.protection.outgoing(run.model.tensors, {})
    if not run.protection.readable:
        entry = run.recorder.record.rounds[-1]
        options["card"] = asdict(run.checkpoints.card(entry, len(run.roster.sites)))
    # Suspended sites too: they may have recovered, and nothing waits for them any more.
    sites = [site for site in run.roster.sites if site not in run.roster.excluded]
    run.progress.event("testing", sites=sites)
    if run.protection.server_reads == "sum":
        outcome = finish_in_sum(run, plan, sites)
    else:
        outcome = run.channel.broadcast(FINISH, accept_any, sites, plan, tensors, options, quorum=ANY)
    add_traffic(run.recorder.record.rounds[-1], outcome.traffic)
    run.checkpoints.add_evaluations(outcome.facts)
    for site, facts in sorted(outcome.facts.items()):
        run.progress.event("tested", site=site, seconds=facts["seconds"])
    for site, reason in outcome.absent.items():
        run.progress.event("test failed", site=site, reason=reason)
    run.untested = join_reasons(outcome.absent, run.roster.sites)
