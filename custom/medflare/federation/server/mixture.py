# SPDX-License-Identifier: Apache-2.0
"""Federated EM before round 1: exchanges of sums alone, through the same egress and protection (TAR-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from medflare.core.errors import ConfigError, RunError, UpdateError
from medflare.core.hints import MOMENTS, STAGES, STATISTICS, RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RoundRecord
from medflare.core.tensor_names import SUM_PREFIX, split_by_prefix
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.federation.messages import FIT, Reply
from medflare.federation.protections.base import ServerProtection, UpcomingRound
from medflare.federation.protections.registry import PROTECTIONS
from medflare.federation.server.run import Run
from medflare.federation.server.run_recorder import add_traffic
from medflare.learners.fedtar.federated_em import FIRST, FederatedMixture, add_sums
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.wire.compression import decompress
from medflare.wire.spec_codec import spec_from_json

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
    hidden = PROTECTIONS[protection].server_reads == "nothing"
    if hidden and mixture is not None and mixture.source == "federated":
        raise ConfigError(
            "the server computes the mixture of profiles from sums that stay encrypted under homomorphic "
            "encryption. Use masking, or mixture.source 'global_fixed' or 'per_client'."
        )


def fit_mixture(run: Run, settings: MixtureSettings) -> None:
    """Fit the mixture over the sites, into the hints of all further plans."""
    specs = agreed_specs(run.declared, run.roster.sites)

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
    plan = RoundPlan(round=number, rounds=run.exchanges, seed=run.args.seed, hints=hints)
    quorum, channel = run.quorum().everybody(), run.channel
    upcoming = UpcomingRound(
        number=number,
        sites=run.roster.eligible(0),
        quorum=quorum.required,
        work=channel.digest_work(plan, {}),
        sums=spec,
    )
    opened = run.protection.open_round(upcoming, channel.in_round(plan))
    collector = SumsCollector(spec, run.protection)
    outcome = channel.broadcast(
        FIT, collector.accept, opened.sites, plan, options=opened.options, quorum=quorum
    )
    outcome.absent |= opened.absent
    channel.require(outcome, quorum.required, f"the mixture of profiles, {hints.profiles}")
    early = RoundRecord(round=0, seconds=0.0, traffic=run.early_traffic)
    add_traffic(early, outcome.traffic)
    run.early_traffic = early.traffic
    if not run.protection.sealed:
        return collector.totals()
    update = run.protection.open_sum(channel.in_round(plan))
    assert update is not None, "a masked sum can be read"
    return update.sums


class SumsCollector:
    """The replies of one such exchange: added up here, or in a sum that nobody can look into."""

    def __init__(self, spec: SharedSpec, protection: ServerProtection) -> None:
        self.spec, self.protection = spec, protection
        self._sums: dict[str, State] = {}

    def accept(self, site: str, reply: Reply) -> str | None:
        """Take a reply; return the reason where it cannot be used."""
        try:
            if self.protection.sealed:
                self.protection.add_sealed(site, reply.facts, reply.tensors)
                return None
            others, sums = split_by_prefix(decompress(reply.tensors), SUM_PREFIX)
            check_state(others, {}, "sums of profiles")
            check_state(sums, self.spec, "sums of profiles")
        except UpdateError as error:
            return f"sums of profiles: {error}"
        self._sums[site] = sums
        return None

    def totals(self) -> State:
        """Return the totals, added in order of the sites' names, which makes a run repeatable."""
        return add_sums([self._sums[site] for site in sorted(self._sums)])


def agreed_specs(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, SharedSpec]:
    """Return stage -> the sums all sites declared.

    Raises:
        RunError: naming who declared others.
    """
    first = next(site for site in sites if site in facts)
    profiles = facts[first].get("profiles")
    different = [site for site in sites if site in facts and facts[site].get("profiles") != profiles]
    if different or profiles is None:
        raise RunError(
            f"the profiles of {', '.join(different) or first} have other entries than those of {first}, or "
            "none. Give all sites the same settings of profile and mixture, and the same version of medflare."
        )
    return {stage: spec_from_json(profiles[stage]) for stage in STAGES}
