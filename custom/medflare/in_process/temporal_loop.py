# SPDX-License-Identifier: Apache-2.0
"""FedTAR in one process without FLARE: the mixture of profiles first, then T exchanges a round.

What a temporal run in FLARE must equal, and what studies use. `loop.federate` does the exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from medflare.aggregation.temporal import TemporalResidual
from medflare.core.hints import RoundHints, VisitHint
from medflare.core.learner import Learner, PatientProfiles
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State, add_sums
from medflare.in_process.checkpoint import LoopCheckpoint
from medflare.in_process.loop import MakePlan, OnRound, federate
from medflare.learners.fedtar.federated_em import FederatedMixture
from medflare.learners.fedtar.mixture import MixtureSettings


def agree_on_mixture(
    profiles: Mapping[str, PatientProfiles], settings: MixtureSettings, entries: int, seed: int
) -> FederatedMixture:
    """Run federated EM over all sites; every site then has the same mixture.

    Args:
        profiles: of each site's patients, by site.
        entries: D of the profiles.

    Raises:
        RunError: all sites together have too few patients.
    """
    sites = [profiles[name] for name in sorted(profiles)]
    server = FederatedMixture(settings, entries, seed)
    mixture = server.begin(add_sums([site.profile_sums() for site in sites]))
    while not server.done:
        mixture = server.step(add_sums([site.mixture_sums(mixture.to_hint()) for site in sites]))
    for site in sites:
        site.take_mixture(mixture.to_hint())
    return server


def federate_visits(
    learners: Mapping[str, Learner],
    rule: TemporalResidual,
    rounds: int,
    make_plan: MakePlan,
    on_exchange: OnRound | None = None,
    state: State | None = None,
    checkpoint: LoopCheckpoint | None = None,
) -> State:
    """Train `rounds` rounds of T exchanges over all sites and return the shared state.

    Sites without examples of a visit send an update of none. The plan's `round` counts exchanges; which visit
    of which round one is, the rule says in its hint `visit`.

    Args:
        make_plan: exchange -> plan. on_exchange: as `on_round` of `federate`, once for each exchange.
        checkpoint: as in `federate`; it counts exchanges.
    """
    exchanges = rounds * rule.visits

    def plan(number: int) -> RoundPlan:
        return replace(make_plan(number), round=number, rounds=exchanges)

    return federate(learners, rule, exchanges, plan, on_exchange, state, checkpoint=checkpoint)


def visit_by_visit(make_plan: MakePlan, visits: int) -> MakePlan:
    """Return plans that train on one visit after the other with any rule: a baseline of the same exchanges
    (TAR-15).

    Without it a learner trains on all its visits at once, as the paper's baselines do.
    """

    def plan(number: int) -> RoundPlan:
        plan = make_plan(number)
        visit = VisitHint(
            round=number // visits, visit=number % visits + 1, visits=visits, slopes=False, days=False
        )
        return replace(plan, hints=plan.hints | RoundHints(visit=visit))

    return plan
