# SPDX-License-Identifier: Apache-2.0
"""Lost exchanges: their records are taken back, the state stays, and too many in a row end the run."""

from __future__ import annotations

from medflare.aggregation.capabilities import SamplesClients
from medflare.core.errors import RunError, UpdateError
from medflare.core.run_record import RoundRecord
from medflare.federation.server.run import RoundState, Run
from medflare.protocol.outcome import TooFewError


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
