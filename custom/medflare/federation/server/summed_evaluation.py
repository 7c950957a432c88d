# SPDX-License-Identifier: Apache-2.0
"""Evaluations in which no number of one site is read: sums under masks, nothing under encryption.

An evaluation is an exchange of sums of its own. If it is lost, the evaluation is lost and the run goes on.
"""

from __future__ import annotations

from medflare.core.errors import RunError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import ALL_SITES, Estimate, EvaluationRecord, RoundRecord
from medflare.core.summed_metrics import (
    TEST,
    VALIDATION,
    SummedMetrics,
    adapter_of,
    groups_of,
    read_totals,
)
from medflare.federation.server.run import Run
from medflare.federation.server.run_recorder import add_traffic, plausible_metrics
from medflare.federation.server.sum_exchange import SumExchange, declared_sums, exchange_sums
from medflare.protocol.messages import EVALUATE, FINISH
from medflare.protocol.outcome import Outcome


def validate_in_sum(run: Run, entry: RoundRecord, plan: RoundPlan, sites: list[str]) -> None:
    """Measure the state on validation data, of which the mean over all of `sites` is read and nothing else.

    A site that fails costs the round its mean, as it does where each site's numbers are known; the sum over
    the others is not opened then, since nobody would use it.
    """
    if not sites or not run.protection.readable:
        return
    tensors, options = run.protection.outgoing(run.model.tensors, {})
    try:
        wanted = SumExchange(
            what="the validation",
            task=EVALUATE,
            plan=plan,
            sums=declared_sums(run.declared, sites, VALIDATION),
            sites=sites,
            required=len(sites),
            tensors=tensors,
            options={"split": VALIDATION, **options},
        )
        totals, outcome = exchange_sums(run, wanted)
        add_traffic(entry, outcome.traffic)
        measured = read_totals(totals, VALIDATION)
        check_measured(run, measured, VALIDATION, sites)
    except (RunError, UpdateError) as error:
        entry.protection[VALIDATION] = {"failed": str(error)}
        run.progress.event(f"{VALIDATION} failed", round=entry.round, reason=str(error))
        return
    means = plausible_metrics(measured.means, VALIDATION)
    entry.mean |= means
    entry.protection[VALIDATION] = {"examples": measured.examples, "sites": measured.sites}
    run.progress.event(VALIDATION, round=entry.round, site=ALL_SITES, **means)


def finish_in_sum(run: Run, plan: RoundPlan, sites: list[str]) -> Outcome:
    """Have sites test the final state and record the means over those that did, for each adapter.

    Returns:
        Who tested, and why others did not; everybody is absent where the sum could not be opened or used.
    """
    tensors, options = run.protection.outgoing(run.model.tensors, {})
    try:
        wanted = SumExchange(
            what="the final test",
            task=FINISH,
            plan=plan,
            sums=declared_sums(run.declared, sites, TEST),
            sites=sites,
            required=1,
            tensors=tensors,
            options=options,
        )
        totals, outcome = exchange_sums(run, wanted)
        tested = sorted(outcome.facts)
        measured = {group: read_totals(totals, group) for group in groups_of(wanted.sums, TEST)}
        for of_adapter in measured.values():
            check_measured(run, of_adapter, TEST, tested)
    except (RunError, UpdateError) as error:
        return Outcome(absent=dict.fromkeys(sites, str(error)))
    run.recorder.record.evaluations += [
        EvaluationRecord(
            site=ALL_SITES,
            role="participant",
            adapter=adapter_of(group),
            split=TEST,
            studies=of_adapter.examples,
            metrics={
                name: Estimate(value=value, low=None, high=None)
                for name, value in plausible_metrics(of_adapter.means).items()
            },
            sites=tested,
            predictions=None,
        )
        for group, of_adapter in measured.items()
        if of_adapter.sites
    ]
    return outcome


def check_measured(run: Run, measured: SummedMetrics, split: str, sites: list[str]) -> None:
    """Check what an opened sum says of itself.

    Raises:
        UpdateError: it is of more sites or examples than there are, which one site can bring about and nobody
            can find out whose numbers are wrong; or of so few sites that it tells one's numbers.
    """
    examples = sum(run.examples[site].get(split, 0) for site in sites)
    if not 0 <= measured.sites <= len(sites) or not 0 <= measured.examples <= examples:
        raise UpdateError(
            f"the sum of what was measured on '{split}' is of {measured.examples} examples at "
            f"{measured.sites} sites; expected at most {examples} at {len(sites)}. A site has sent wrong "
            "numbers."
        )
    if 0 < measured.sites < min(run.min_sites, len(sites)):
        raise UpdateError(
            f"{measured.sites} of {len(sites)} sites had enough examples in '{split}', expected "
            f"{min(run.min_sites, len(sites))} or more: the mean over fewer tells what one of them measured."
        )
