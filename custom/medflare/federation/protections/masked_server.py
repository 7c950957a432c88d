# SPDX-License-Identifier: Apache-2.0
"""The server's side of secure aggregation by masking: five exchanges a round, and one sum at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.federation.messages import CONFIRM, KEYS, REVEAL, SHARES, Reply
from medflare.federation.protections.base import (
    SECURE,
    Declared,
    Opened,
    Round,
    ServerProtection,
    Talk,
    layout_of,
)
from medflare.federation.protections.settings import ProtectionSettings
from medflare.federation.protections.weights import Weighing
from medflare.federation.server.exchange import OnReply, Outcome, TooFewError
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.secure_aggregation.errors import MaskingError
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masked import Masked
from medflare.secure_aggregation.round_parameters import Terms

NARROW, WIDE = "masked:narrow", "masked:wide"
"""An update's two vectors on the wire: int32 [P] and int64 [S + 1]."""
UNWEIGHED = Weighing(by="uniform", most=1.0)
"""Sums alone are added as they are."""
ADD = {KEYS: "add_advert", SHARES: "add_shares", CONFIRM: "add_confirmation", REVEAL: "add_reveal"}
"""Step -> what takes a site's answer to it."""


class MaskedServer(ServerProtection):
    """Sees masked vectors and, once enough sites have opened their sum, that sum."""

    sealed = True

    def __init__(self, settings: ProtectionSettings, identity: Identity) -> None:
        self.settings, self.identity = settings, identity
        self._report: dict[str, Any] = {}

    def expect(self, declared: Declared) -> None:
        self.run_id, self.weighing, self.layout = declared.run_id, declared.weighing, declared.layout

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        return self.layout.narrow.size * self.settings.bits // 8 + (self.layout.wide.size + 1) * 8

    def open(self, coming: Round, talk: Talk) -> Opened:
        started, quorum = time.monotonic(), coming.quorum
        self.current = self.layout if coming.sums is None else layout_of({}, coming.sums)
        self.coordinator = Coordinator(self._terms(coming), self.current, self.identity)
        self._lost, self._silent, self._waited = dict[str, str](), list[str](), dict[str, float]()
        terms = self.coordinator.terms.to_json()
        gave = self._step(KEYS, coming.sites, {"terms": terms}, quorum, talk)
        shared = self._step(SHARES, gave, {"adverts": self.coordinator.adverts()}, quorum, talk)
        shares = {site: self.coordinator.shares_for(site) for site in shared}
        self._report = {"terms": terms, "keys_seconds": round(time.monotonic() - started, 3)}
        options = {SECURE: {"shares": shares}}
        lost, waited = dict(self._lost), dict(self._waited)
        return Opened(sites=shared, options=options, absent=lost, silent=self._silent, waited=waited)

    def _step(
        self, task: str, sites: list[str], said: Mapping[str, Any], quorum: int, talk: Talk
    ) -> list[str]:
        """Who answered one step; TooFewError that names all others if they are fewer than the threshold."""
        outcome = talk(task, sites, {SECURE: dict(said)}, self._taking(ADD[task]), quorum)
        self._lost |= {site: f"'{task}' of the secure sum: {why}" for site, why in outcome.absent.items()}
        self._silent += outcome.silent
        self._waited |= outcome.waited
        needed = self.coordinator.terms.threshold
        if len(outcome.facts) < needed:
            lost = "; ".join(f"{site}: {why}" for site, why in sorted(self._lost.items()))
            raise TooFewError(
                f"the sum of the masked updates cannot be opened: {len(outcome.facts)} sites answered "
                f"'{task}', {needed} are needed. {lost}. Nothing of this round was read.",
                Outcome(absent=dict(self._lost), silent=self._silent, waited=self._waited),
            )
        return sorted(outcome.facts)

    def _terms(self, coming: Round) -> Terms:
        """What this round's sites agree on; ConfigError for a threshold that is no majority of them."""
        weighing = self.weighing if coming.sums is None else UNWEIGHED
        return Terms.of(
            self.current,
            sites=coming.sites,
            threshold=self.settings.threshold,
            run_id=self.run_id,
            round=coming.number,
            canary=coming.canary,
            work=coming.work,
            weighing=weighing.by,
            most_weight=weighing.most,
            idle=weighing.idle,
            bits=self.settings.bits,
            bound=self.settings.bound,
        )

    def _taking(self, step: str) -> OnReply:
        """Hands a site's part of a step to the coordinator; the reason where it cannot be used."""

        def take(site: str, reply: Reply) -> str | None:
            try:
                getattr(self.coordinator, step)(site, reply.facts[SECURE])
            except (MaskingError, UpdateError) as error:
                return f"secure sum: {error}"
            return None

        return take

    def take(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        if set(tensors) != {NARROW, WIDE}:
            raise UpdateError(f"holds {sorted(tensors)[:4]}; expected masked vectors '{NARROW}' and '{WIDE}'")
        terms = str(facts.get(SECURE, {}).get("terms"))
        self.coordinator.add_masked(site, Masked(terms, tensors[NARROW], tensors[WIDE]))

    def close(self, talk: Talk) -> Update | None:
        started = time.monotonic()
        survivors, needed = self.coordinator.survivors(), self.coordinator.terms.threshold
        self._lost = {}
        agreed = self._step(CONFIRM, survivors, {"survivors": survivors}, needed, talk)
        told = {"confirmations": self.coordinator.confirmations()}
        self._step(REVEAL, agreed, told, needed, talk)
        found = self.coordinator.result()
        self._report |= {**found.report(), "lost": self._lost}
        self._report["open_seconds"] = round(time.monotonic() - started, 3)
        examples = max(1, round(found.weight)) if found.weight else 0
        return Update.from_message(self.current.unpack(found.narrow, found.wide), {"examples": examples})

    def report(self) -> dict[str, Any]:
        return self._report
