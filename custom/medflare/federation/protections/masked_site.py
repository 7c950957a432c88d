# SPDX-License-Identifier: Apache-2.0
"""A site's side of secure aggregation by masking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.egress.chain import Seal
from medflare.egress.policy import Policy
from medflare.federation.messages import CONFIRM, KEYS, REVEAL, SHARES, Request
from medflare.federation.protections.base import SECURE, SiteProtection, layout_of
from medflare.federation.protections.limits import limits_of
from medflare.federation.protections.masked_server import NARROW, WIDE
from medflare.federation.protections.weighting import UpdateWeighting
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.wire.files import read_json, write_json
from medflare.wire.task_messages import TaskResult

MEMORY = "secure_sum.json"
"""File that remembers for which round keys were given last."""


class MaskedSite(SiteProtection):
    """Keeps one round's secrets in memory; a site that restarts in a round has dropped out of it.

    A round is joined once and never again, also after a restart: two sums of the same updates over different
    sites would differ by one site's update.
    """

    def __init__(self, site: str, identity: Identity, policy: Policy, memory: Path) -> None:
        self.site, self.identity, self.memory = site, identity, memory / MEMORY
        self.limits = limits_of(policy)
        self.layout: Layout | None = None
        self.sums_layouts: dict[str, Layout] = {}
        self.member: Member | None = None

    def apply_policy(self, policy: Policy) -> None:
        self.limits = limits_of(policy)

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        self.layout = layout_of(shared, sums)

    def declare_sums(self, specs: Sequence[SharedSpec]) -> None:
        layouts = [layout_of({}, spec) for spec in specs]
        self.sums_layouts = {layout.digest: layout for layout in layouts}

    def _layout(self, digest: str) -> Layout:
        """Return the declared layout of that digest; an update's where none of that digest was declared."""
        if self.layout is None:
            raise UpdateError("nothing was declared yet; a run starts with 'prepare'.")
        return self.sums_layouts.get(digest, self.layout)

    def answer_step(self, request: Request) -> dict[str, Any]:
        message = request.options[SECURE]
        if request.task == KEYS:
            return self._join(request, RoundParameters.from_json(message["terms"]))
        member = self._member(request)
        if request.task == SHARES:
            return member.share(message["adverts"])
        if request.task == CONFIRM:
            return member.confirm(message["survivors"])
        assert request.task == REVEAL
        return member.reveal(message["confirmations"])

    def _join(self, request: Request, terms: RoundParameters) -> dict[str, Any]:
        """Return this site's keys for a round that it has not joined before."""
        if (terms.run_id, terms.round) != (request.run_id, request.round):
            raise UpdateError(
                f"the terms are of round {terms.round} of run {terms.run_id}; expected round "
                f"{request.round} of run {request.run_id}."
            )
        # The canary has the number of round 0; as -1 it comes before it, and round 0 can still be joined.
        place = -1 if terms.canary else terms.round
        last = read_json(self.memory) if self.memory.exists() else {}
        if last.get("run_id") == terms.run_id and place <= last["place"]:
            raise UpdateError(
                f"keys for round {terms.round} were asked for again. A site joins the sum of a round once: "
                "two sums over different sites would differ by one site's update."
            )
        write_json(self.memory, {"run_id": terms.run_id, "place": place})
        member = Member(self.identity, self._layout(terms.layout), self.limits)
        advert = member.advertise(terms)
        self.member = member
        return advert

    def _member(self, request: Request) -> Member:
        """Return the member of the request's round; UpdateError where the site has joined another or none."""
        if self.member is None:
            raise UpdateError(
                f"'{request.task}' of round {request.round} came without 'keys' before it: this site has "
                "restarted, or the server left a step out."
            )
        terms = self.member.parameters
        if (terms.run_id, terms.round) != (request.run_id, request.round):
            raise UpdateError(
                f"'{request.task}' is of round {request.round}; the keys this site gave are of round "
                f"{terms.round} and for no other."
            )
        return self.member

    def seal(self, request: Request, result: TaskResult) -> Seal | None:
        """Mask the update, if it was trained on what all sites agreed to train on."""
        member = self._member(request)
        if request.work != member.parameters.work:
            raise UpdateError(
                "the state or the plan that came is not the one this round's sites agreed on; a server that "
                "sends different ones to different sites could read an update from the sum."
            )
        terms = member.parameters
        weighting = UpdateWeighting(by=terms.weighing, max_weight=terms.most_weight, zero_weight=terms.idle)
        weight = weighting.weight(result.facts)
        shares = request.options[SECURE]["shares"].get(self.site, {})
        return Masks(member, shares, member.layout, weight)


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
