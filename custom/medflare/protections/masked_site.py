# SPDX-License-Identifier: Apache-2.0
"""A site's side of secure aggregation by masking."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.hints import STATISTICS, RoundHints
from medflare.core.secure_random import SecureRandom
from medflare.core.summed_metrics import EXCHANGES, TEST
from medflare.core.tensors import SharedSpec, State
from medflare.core.visit_sums import SLOPES
from medflare.egress.policy import Policy
from medflare.egress.seal import Seal
from medflare.protections.base import SECURE, SiteProtection, layout_of
from medflare.protections.limits import limits_of
from medflare.protections.masked_server import NARROW, WIDE
from medflare.protections.noise_numbers import noise_numbers
from medflare.protections.opened_sums import OpenedSums, SumOrigin, state_key, weights_key
from medflare.protections.weighting import UpdateWeighting
from medflare.protocol.messages import CONFIRM, EVALUATE, FINISH, FIT, KEYS, REVEAL, SHARES, Request
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.wire.durable import read_json, write_json
from medflare.wire.task_messages import TaskResult

MOST_SPREAD = 100
"""Largest ratio of the weights of a site's own update and another one that the server may ask for."""
MEMORY = "secure_sum.json"
"""File that remembers for which round keys were given last: of updates, and of each sum of numbers."""
UPDATE = "update"
"""An exchange of updates, beside those of declared sums alone; and the series of both rounds and sums of
profiles, of which one follows the other."""


class MaskedSite(SiteProtection):
    """Keeps one round's secrets in memory; a site that restarts in a round has dropped out of it.

    A round is joined once in each attempt of the server, also after a restart, with new keys. What keeps two
    attempts from telling one site's update is that from one state at most one sum is opened (`opened_sums`):
    the secrets of an attempt whose sum was not opened are gone with it, and after `reveal` only a sum over
    the very same sites, of the very same updates, can be opened once more.

    What a site measures is an exchange of its own, whose declared sums hold the numbers and nothing else. The
    layout of the agreed terms says which exchange it is, and a request of another one is not answered.

    A canary is masked and opened like any other round, but what it sums are zeros: nobody needs its updates,
    and round 0 starts from the same state.

    Args:
        memory: folder of what is remembered of this job. opened: what the kit remembers of all jobs.
        job: what the job trains, beside a plan: method and settings; JSON types.
    """

    def __init__(
        self,
        site: str,
        identity: Identity,
        policy: Policy,
        memory: Path,
        opened: OpenedSums,
        job: Mapping[str, Any],
    ) -> None:
        self.site, self.identity, self.memory = site, identity, memory / MEMORY
        self.limits, self.opened, self.job = limits_of(policy), opened, dict(job)
        self.shared: SharedSpec = {}
        self.by_visit = False
        self.origin: SumOrigin | None = None
        self.layout: Layout | None = None
        self.exchanges: dict[str, tuple[str, Layout]] = {}
        self.member: Member | None = None

    def apply_policy(self, policy: Policy) -> None:
        self.limits = limits_of(policy)

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        self.layout, self.shared, self.by_visit = layout_of(shared, sums), shared, SLOPES in sums

    def declare_sums(self, specs: Mapping[str, SharedSpec]) -> None:
        layouts = {exchange: layout_of({}, spec) for exchange, spec in specs.items()}
        self.exchanges = {layout.digest: (exchange, layout) for exchange, layout in layouts.items()}

    def _layout(self, digest: str) -> Layout:
        """Return the declared layout of that digest; an update's where none of that digest was declared."""
        if self.layout is None:
            raise UpdateError("nothing was declared yet; a run starts with 'prepare'.")
        return self.exchanges[digest][1] if digest in self.exchanges else self.layout

    def _exchange(self, digest: str) -> str:
        """Return which exchange a layout belongs to."""
        return self.exchanges[digest][0] if digest in self.exchanges else UPDATE

    def place(self, request: Request) -> int | None:
        """Return the place of a round, which its keys open; those of a sum of numbers open none."""
        if request.task != KEYS:
            return super().place(request)
        exchange = self._exchange(str(request.options[SECURE]["terms"].get("layout")))
        return None if exchange in EXCHANGES else request.place

    def answer_step(self, request: Request) -> dict[str, Any]:
        message = request.options[SECURE]
        if request.task == KEYS:
            return self._join(request, RoundParameters.from_json(message["terms"]))
        member = self._member(request)
        if request.task == SHARES:
            return member.share(message["adverts"])
        if request.task == CONFIRM:
            if self.origin is not None:
                self.opened.check(self.origin, message["survivors"])
            return member.confirm(message["survivors"])
        assert request.task == REVEAL
        revealed = member.reveal(message["confirmations"])
        if self.origin is not None:  # on disk before the shares leave
            self.opened.remember(self.origin, member.survivors)
        return revealed

    def _join(self, request: Request, terms: RoundParameters) -> dict[str, Any]:
        """Return this site's keys for a round that it has not joined before."""
        if (terms.run_id, terms.round) != (request.run_id, request.round):
            raise UpdateError(
                f"the terms are of round {terms.round + 1} of run {terms.run_id}; expected round "
                f"{request.round + 1} of run {request.run_id}."
            )
        # The canary has the number of round 0; as -1 it comes before it, and round 0 can still be joined.
        place, exchange = -1 if terms.canary else terms.round, self._exchange(terms.layout)
        series = exchange if exchange in EXCHANGES else UPDATE
        memory = read_json(self.memory) if self.memory.exists() else {}
        joined = memory["joined"] if memory.get("run_id") == terms.run_id else {}
        last, attempt = joined.get(series, [None, 0])
        if last is not None and place <= last and terms.attempt <= attempt:
            raise UpdateError(
                f"keys for round {terms.round + 1} were asked for again. A site joins the sum of a round "
                "once, unless the server goes on with the run after a crash."
            )
        joined = {**joined, series: [place, terms.attempt]}
        write_json(self.memory, {"run_id": terms.run_id, "joined": joined})
        member = Member(self.identity, self._layout(terms.layout), self.limits, self._noise_numbers)
        advert = member.advertise(terms)
        self.member, self.origin = member, None
        return advert

    def _noise_numbers(self, values: Tensor) -> SecureRandom:
        """Return the numbers for the noise of an update that `check_training` has admitted."""
        assert self.member is not None
        assert self.origin is not None
        return noise_numbers(self.opened.folder, self.origin, self.member.parameters, values)

    def _member(self, request: Request) -> Member:
        """Return the member of the request's round; UpdateError where the site has joined another or none."""
        if self.member is None:
            raise UpdateError(
                f"'{request.task}' of round {request.round + 1} came without 'keys' before it: this site has "
                "restarted, or the server left a step out."
            )
        terms = self.member.parameters
        if (terms.run_id, terms.round) != (request.run_id, request.round):
            raise UpdateError(
                f"'{request.task}' is of round {request.round + 1}; the keys this site gave are of round "
                f"{terms.round + 1} and for no other."
            )
        return self.member

    def check_training(self, request: Request) -> None:
        """Refuse to train on what other sites were not sent too, or for a sum that could not be opened.

        Raises:
            UpdateError: state or plan are not those that all sites agreed on, what is said of a canary is
                contradictory, or another sum of updates from this state was opened.
        """
        hints = RoundHints.from_json(request.plan.get("hints", {}))
        member = self._agreed(request, hints.profiles or UPDATE)
        canary = member.parameters.canary
        if bool(request.options.get("canary")) != canary:
            raise UpdateError(
                f"the terms of round {request.round + 1} {'are' if canary else 'are not'} a canary's, and "
                "the request to train says otherwise. What is local is put back after a canary only."
            )
        if canary and request.plan.get("steps") != 1:
            raise UpdateError(f"a canary of {request.plan.get('steps')} steps; expected one of 1 step.")
        if not canary:
            self._check_factors(hints, self._sites(request))
            self._begin(request, self._origin(request, hints, member.parameters))

    def check_measuring(self, request: Request) -> None:
        """Refuse to measure what other sites were not sent too, or for another sum than the agreed one.

        A probe of training examples is no part of a sum: the site's own policy has said yes to each
        (`train_losses`), and its state is checked at the next round.

        Raises:
            UpdateError: state, plan or split are not those that all sites agreed on, they agreed on a canary,
                or another sum of numbers of this state was opened.
        """
        hints = RoundHints.from_json(request.plan.get("hints", {}))
        if hints.probe:
            return
        member = self._agreed(request, TEST if request.task == FINISH else request.options["split"])
        if member.parameters.canary:
            raise UpdateError("the terms are a canary's, in which nothing is measured.")
        self._begin(request, self._origin_of_numbers(request, hints, member.parameters))

    def _agreed(self, request: Request, exchange: str) -> Member:
        """Return the member of the request's round.

        Args:
            exchange: that the request is part of.

        Raises:
            UpdateError: the request brings other work than the sites agreed on, or is of another exchange.
        """
        member = self._member(request)
        terms = member.parameters
        if request.work != terms.work:
            raise UpdateError(
                "the state or the plan that came is not the one this round's sites agreed on; a server that "
                "sends different ones to different sites could read an update from the sum."
            )
        if self._exchange(terms.layout) != exchange:
            raise UpdateError(
                f"the request is for the sum '{exchange}', and the terms that this round's sites agreed on "
                f"are of the sum '{self._exchange(terms.layout)}'."
            )
        return member

    def _sites(self, request: Request) -> set[str]:
        """Return the sites with which a request's sum begins."""
        return {self.site, *self._shares(request)}

    def _shares(self, request: Request) -> Mapping[str, Any]:
        """Return the shares that others sealed for this site.

        Raises:
            UpdateError: none came along.
        """
        message = request.options.get(SECURE)
        if message is None:
            raise UpdateError(f"'{request.task}' came without the shares of this round's sites.")
        shares: Mapping[str, Any] = message["shares"].get(self.site, {})
        return shares

    def _begin(self, request: Request, origin: SumOrigin) -> None:
        """Take part in a sum; UpdateError where another one of the same origin was opened."""
        self.opened.check(origin, self._sites(request))
        self.origin = origin

    def _check_factors(self, hints: RoundHints, sites: Collection[str]) -> None:
        """Refuse a plan whose factors would make the sum nearly this site's own update."""
        named = dict[str, float]()
        if hints.importance is not None:
            named = {site: hints.importance.weights.get(site, hints.importance.largest) for site in sites}
        elif hints.snapshot is not None:
            named = {site: hints.snapshot.drawn.get(site, 1) for site in sites}
        comparable = [site for site in named if named[site] * MOST_SPREAD >= named[self.site]]
        if named and len(comparable) < self.limits.min_sites:
            raise UpdateError(
                f"the plan has this site's update count over {MOST_SPREAD} times as much as others: "
                f"{len(comparable)} are comparable with it, expected {self.limits.min_sites}. The sum would "
                "be nearly this site's update."
            )
        if hints.influence is not None and not hints.influence.clip <= math.log(MOST_SPREAD):
            raise UpdateError(
                f"the plan lets a site count exp({hints.influence.clip:g}) times as much as by its examples; "
                f"expected at most {MOST_SPREAD} times under masks. Set rule_settings.clip."
            )

    def _origin(self, request: Request, hints: RoundHints, terms: RoundParameters) -> SumOrigin:
        """Return what the request's updates start from, and all that decides how sites weigh them."""
        plan = request.plan
        visit = hints.visit.visit if hints.visit is not None and self.by_visit else 0
        data: list[Any] = [visit]
        if hints.profiles is not None:
            mixture = hints.mixture if hints.profiles == STATISTICS else None  # moments are of no mixture
            data = [terms.layout, hints.profiles, mixture and mixture.model_dump()]
        return SumOrigin(
            state=state_key(request.tensors, self.shared, data),
            weights=weights_key(
                job=self.job,
                weighing=[terms.weighing, terms.idle],
                steps=[plan.get("steps"), plan.get("fraction")],
                importance=hints.importance and hints.importance.model_dump(),
                influence=hints.influence and hints.influence.model_dump(),
                drawn=hints.snapshot and hints.snapshot.drawn,
                **_noise_terms(terms),
            ),
        )

    def _origin_of_numbers(self, request: Request, hints: RoundHints, terms: RoundParameters) -> SumOrigin:
        """Return what numbers are of, and all by which a server can have sites measure otherwise."""
        return SumOrigin(
            state=state_key(request.tensors, self.shared, [self._exchange(terms.layout)]),
            weights=weights_key(
                job=self.job,
                layout=terms.layout,
                limit=request.plan.get("limit"),
                hints=hints.to_json(),
            ),
        )

    def seal(self, request: Request, result: TaskResult) -> Seal | None:
        """Return what masks an answer, which `check_training` or `check_measuring` has admitted."""
        if request.task not in (FIT, EVALUATE, FINISH) or request.plan.get("hints", {}).get("probe"):
            return None
        member = self._member(request)
        terms = member.parameters
        weighting = UpdateWeighting(by=terms.weighing, max_weight=terms.most_weight, zero_weight=terms.idle)
        weight = weighting.weight(result.facts)
        return Masks(member, self._shares(request), member.layout, weight)


def _noise_terms(terms: RoundParameters) -> dict[str, Any]:
    """Return all by which a server can have other noise on the same updates; empty without noise."""
    if not terms.noise:
        return {}
    noise = [terms.clip, terms.noise, terms.colluding, terms.threshold, terms.bits, terms.bound]
    return {"noise": [*noise, len(terms.sites)]}


class Masks:
    """Packs an update, weighs it and masks it; its count and factor travel inside the sum."""

    name: Literal["mask"] = "mask"

    def __init__(self, member: Member, shares: Mapping[str, Any], layout: Layout, weight: float) -> None:
        self.member, self.shares, self.layout, self.weight = member, shares, layout, weight

    def __call__(self, tensors: State) -> State:
        masked = self.member.mask(self.shares, *self.layout.pack(tensors), self.weight)
        return {NARROW: masked.narrow, WIDE: masked.wide}

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in facts.items() if name not in ("examples", "factor")}
        return {**kept, SECURE: {"terms": self.member.parameters.digest}}
