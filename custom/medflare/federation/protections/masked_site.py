# SPDX-License-Identifier: Apache-2.0
"""A site's side of secure aggregation by masking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from medflare.errors import UpdateError
from medflare.federation.egress import Seal
from medflare.federation.messages import CONFIRM, KEYS, REVEAL, SHARES, Request
from medflare.federation.protections.base import SECURE, SiteProtection, layout_of
from medflare.federation.protections.masked_server import NARROW, WIDE
from medflare.federation.protections.weights import Weighing
from medflare.federation.worker_session import Result
from medflare.learners.base import SharedSpec, State
from medflare.privacy.identity import Identity
from medflare.privacy.layout import Layout
from medflare.privacy.member import Member
from medflare.privacy.terms import Limits, Terms


class MaskedSite(SiteProtection):
    """Keeps one round's secrets in memory; a site that restarts in a round has dropped out of it."""

    def __init__(self, site: str, identity: Identity, limits: Limits) -> None:
        self.site, self.identity, self.limits = site, identity, limits
        self.layout: Layout | None = None
        self.member: Member | None = None

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        self.layout = layout_of(shared, sums)

    def _layout(self) -> Layout:
        if self.layout is None:
            raise UpdateError("nothing was declared yet; a run starts with 'prepare'.")
        return self.layout

    def answer(self, request: Request) -> dict[str, Any]:
        said = request.options[SECURE]
        if request.task == KEYS:
            self.member = Member(self.identity, self._layout(), self.limits)
            return self.member.advertise(self._terms(request, said["terms"]))
        member = self._member(request)
        if request.task == SHARES:
            return member.share(said["adverts"])
        if request.task == CONFIRM:
            return member.confirm(said["survivors"])
        assert request.task == REVEAL
        return member.reveal(said["confirmations"])

    def _terms(self, request: Request, told: Mapping[str, Any]) -> Terms:
        """The round's terms, which must be of the round they came in."""
        terms = Terms.from_json(told)
        if (terms.run_id, terms.round) != (request.run_id, request.round):
            raise UpdateError(
                f"the terms are of round {terms.round} of run {terms.run_id}; expected round "
                f"{request.round} of run {request.run_id}."
            )
        return terms

    def _member(self, request: Request) -> Member:
        if self.member is None:
            raise UpdateError(
                f"'{request.task}' of round {request.round} came without 'keys' before it: this site has "
                "restarted, or the server left a step out."
            )
        return self.member

    def seal(self, request: Request, result: Result) -> Seal | None:
        """Masks the update; its count and factor travel inside the sum only."""
        member = self._member(request)
        weight = Weighing(**request.options[SECURE]["weighing"]).weight(result.facts)
        for name in ("examples", "factor"):
            result.facts.pop(name, None)
        result.facts[SECURE] = {"terms": member.terms.digest}
        shares = request.options[SECURE]["shares"].get(self.site, {})
        return Masks(member, shares, self._layout(), weight)


class Masks:
    """Packs an update, weighs it and masks it."""

    name: Literal["mask"] = "mask"

    def __init__(self, member: Member, shares: Mapping[str, Any], layout: Layout, weight: float) -> None:
        self.member, self.shares, self.layout, self.weight = member, shares, layout, weight

    def __call__(self, tensors: State) -> State:
        masked = self.member.mask(self.shares, *self.layout.pack(tensors), self.weight)
        return {NARROW: masked.narrow, WIDE: masked.wide}
