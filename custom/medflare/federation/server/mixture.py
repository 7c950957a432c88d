# SPDX-License-Identifier: Apache-2.0
"""Federated EM before round 1: exchanges of sums alone, through the same egress and protection (TAR-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from medflare.core.errors import ConfigError
from medflare.core.hints import MOMENTS, STAGES, STATISTICS, RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.tensors import SharedSpec, State
from medflare.federation.server.run import Run
from medflare.federation.server.run_recorder import add_traffic
from medflare.federation.server.sum_exchange import SumExchange, declared_sums, exchange_sums
from medflare.learners.fedtar.federated_em import FIRST, FederatedMixture, impossible
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.protections.registry import get_protection
from medflare.protocol.messages import FIT

Gather = Callable[[int, SharedSpec, RoundHints], State]
"""(number of the exchange, sums expected, hints) -> their totals over the sites."""


def mixture_to_fit(mixture: MixtureSettings | None, protection: str) -> MixtureSettings | None:
    """Return the mixture that is to be fitted over the sites, if one is.

    Raises:
        ConfigError: the server could not read the sums that it is fitted from.
    """
    check_mixture(mixture, protection)
    return mixture if mixture is not None and mixture.source == "federated" else None


def check_mixture(mixture: MixtureSettings | None, protection: str) -> None:
    """Raise ConfigError where a mixture is to be fitted from sums that nobody at the server can read."""
    hidden = get_protection(protection).server_reads == "nothing"
    if hidden and mixture is not None and mixture.source == "federated":
        raise ConfigError(
            "the server computes the mixture of profiles from sums that stay encrypted under homomorphic "
            "encryption. Use masking, or mixture.source 'global_fixed' or 'per_client'."
        )


def fit_mixture(run: Run, settings: MixtureSettings) -> None:
    """Fit the mixture over the sites, into the hints of all further plans."""
    specs = {stage: declared_sums(run.declared, run.roster.sites, stage) for stage in STAGES}

    def gather(number: int, spec: SharedSpec, hints: RoundHints) -> State:
        return gather_sums(run, number, spec, hints)

    server = agree_on_mixture(settings, specs, run.args.seed, gather)
    assert server.mixture is not None
    run.agreed_hints, report = RoundHints(mixture=server.mixture.to_hint()), server.report()
    run.checkpoints.writer.export |= run.agreed_hints.to_json()  # who tests the result elsewhere needs it too
    run.recorder.record.preparation["mixture"] = report
    run.recorder.write()
    run.progress.event("mixture", components=report["components"], iterations=report["iterations"])


def agree_on_mixture(
    settings: MixtureSettings, specs: Mapping[str, SharedSpec], seed: int, gather: Gather
) -> FederatedMixture:
    """Run EM over the sites; exchanges are counted up to -2, as a canary is -1 and the first round 0.

    Raises:
        RunError: all sites together have too few patients.
    """
    server = FederatedMixture(settings, specs[MOMENTS][FIRST][0][0], seed)
    number = -(settings.iterations + 2)
    mixture = server.begin(gather(number, specs[MOMENTS], RoundHints(profiles=MOMENTS)))
    while not server.done:
        number += 1
        hints = RoundHints(profiles=STATISTICS, mixture=mixture.to_hint())
        mixture = server.step(gather(number, specs[STATISTICS], hints))
    return server


def gather_sums(run: Run, number: int, spec: SharedSpec, hints: RoundHints) -> State:
    """Return the totals of one exchange of sums alone."""

    def wrong(sums: State, sites: Sequence[str]) -> str:
        return impossible(sums, sum(run.examples[site].get("train", 0) for site in sites))

    wanted = SumExchange(
        what=f"the mixture of profiles, {hints.profiles}",
        task=FIT,
        plan=RoundPlan(round=number, rounds=run.exchanges, seed=run.args.seed, hints=hints),
        sums=spec,
        sites=run.roster.eligible(0),
        required=run.quorum().required,
        impossible=wrong,
    )
    totals, outcome = exchange_sums(run, wanted)
    early = RoundRecord(round=0, seconds=0.0, traffic=run.early_traffic)
    add_traffic(early, outcome.traffic)
    run.early_traffic = early.traffic
    return totals
