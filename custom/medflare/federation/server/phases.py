# SPDX-License-Identifier: Apache-2.0
"""A run around its rounds: prepare, initialise, agree, canary before them, the final test after them.

Every site of the roster is in each round's record, accepted or absent with a reason; after each round the
state is on disk, and a run that cannot go on leaves its last good state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from medflare.aggregation.capabilities import round_hints
from medflare.core.errors import RunError
from medflare.core.plan import RoundPlan
from medflare.core.site_description import description_of
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.federation.messages import FINISH, INITIALISE, PREPARE, Reply
from medflare.federation.protections.base import RunDeclaration
from medflare.federation.protections.weighting import UpdateWeighting
from medflare.federation.server.channel import accept_any
from medflare.federation.server.exact_comparison import compare_graphs
from medflare.federation.server.mixture import fit_mixture, mixture_to_fit
from medflare.federation.server.preparation import agree, require_shared_notes
from medflare.federation.server.quorum import ANY
from medflare.federation.server.roster import join_reasons
from medflare.federation.server.round import run_round, train
from medflare.federation.server.run import GlobalModel, Run
from medflare.federation.server.run_recorder import add_traffic
from medflare.federation.server.scoring import open_scorer
from medflare.federation.server.timing import workload
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.wire.compression import decompress, message_bytes


def run_all(run: Run, mixture: MixtureSettings | None = None) -> None:
    """Run everything from preparation to the final tests.

    Args:
        mixture: of patients' profiles, if the job names one.
    """
    to_fit = mixture_to_fit(mixture, run.args.protection)
    prepare(run, {"mixture": {"components": to_fit.components}} if to_fit else {})
    run.model = GlobalModel(tensors=initialise(run))
    if to_fit:
        fit_mixture(run, to_fit)
    run.sketches.refresh(-1)
    compare_graphs(run.rule, run.channel, run.recorder, run.progress)
    if run.args.canary:
        run_canary(run)
    for number in range(run.args.num_rounds):
        run_round(run, number)
    final_test(run)


def prepare(run: Run, further_options: Mapping[str, Any]) -> None:
    """Ask every site what it is and has; backbones and shared tensors must agree before round 1.

    Args:
        further_options: what else sites are asked to declare.
    """
    hints = round_hints(run.rule)
    options = {"job": run.args.job, "hints": hints.to_json(), **further_options}
    quorum = run.quorum().everybody()
    outcome = run.channel.broadcast(PREPARE, accept_any, options=options, quorum=quorum)
    run.channel.require(outcome, quorum.required, "prepare")
    run.declared = outcome.facts
    for site, reason in outcome.absent.items():
        run.roster.exclude(site, f"prepare failed: {reason}")
    run.shared_spec, sums, run.examples = agree(outcome.facts, run.roster.sites)
    if hints.influence is not None:
        require_shared_notes(outcome.facts)
    declare(run, sums)
    open_scorer(run)
    run.progress.event("prepared", sites=run.roster.sites, seconds=round(outcome.seconds, 2))


def declare(run: Run, sums: SharedSpec) -> None:
    """Hand what the sites declared to the parts of the run that need it."""
    shared, facts = run.shared_spec, run.declared
    train_examples = {site: counts.get("train", 0) for site, counts in run.examples.items()}
    run.aggregator.expect(shared, sums, train_examples)
    run.protection.expect(
        RunDeclaration(
            run_id=run.run_id,
            shared=shared,
            sums=sums,
            weighting=UpdateWeighting.of(run.rule, train_examples, run.aggregator.accepts_zero_weight),
            rounds=run.exchanges,
            site_facts={site: description_of(answer, site).protection for site, answer in facts.items()},
        )
    )
    bytes_up = run.protection.bytes_up(shared, run.args.uplink)
    run.checkpoints.expect(facts, shared, bytes_up)
    bytes_down = run.recorder.record.expected_bytes_down
    work = workload(facts[min(facts)], bytes_down, bytes_up or message_bytes(shared, run.args.uplink))
    run.timings.expect(run.roster.sites, train_examples, work)


def initialise(run: Run) -> State:
    """Return the shared tensors before round 1, from the first site by name."""
    site, initial = run.roster.eligible(0)[0], dict[str, Any]()

    def take(_: str, reply: Reply) -> str | None:
        tensors = decompress(reply.tensors)
        check_state(tensors, run.shared_spec, f"initial tensors of site '{site}'")
        initial.update(tensors)
        return None

    outcome = run.channel.broadcast(INITIALISE, take, sites=[site], quorum=ANY)
    if not initial:
        raise RunError(f"no initial state: {join_reasons(outcome.absent, [site])}")
    run.early_traffic = outcome.traffic
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
    outcome = run.channel.broadcast(FINISH, accept_any, sites, plan, tensors, options, quorum=ANY)
    add_traffic(run.recorder.record.rounds[-1], outcome.traffic)
    run.checkpoints.add_evaluations(outcome.facts)
    for site, facts in sorted(outcome.facts.items()):
        run.progress.event("tested", site=site, seconds=facts["seconds"])
    for site, reason in outcome.absent.items():
        run.progress.event("test failed", site=site, reason=reason)
    run.untested = join_reasons(outcome.absent, run.roster.sites)
