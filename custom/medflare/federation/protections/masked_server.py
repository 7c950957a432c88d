# SPDX-License-Identifier: Apache-2.0
"""The server's side of secure aggregation by masking: five exchanges a round, and one sum at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from medflare.errors import RunError, UpdateError
from medflare.federation import wire
from medflare.federation.controllers.exchange import OnReply, Outcome
from medflare.federation.messages import CONFIRM, KEYS, REVEAL, SHARES, Reply
from medflare.federation.protections.base import SECURE, Declared, Opened, ServerProtection, Talk
from medflare.federation.protections.settings import ProtectionSettings
from medflare.learners.base import State, Update
from medflare.privacy.coordinator import Coordinator
from medflare.privacy.errors import MaskingError
from medflare.privacy.terms import Terms

NARROW, WIDE = "masked:narrow", "masked:wide"
"""An update's two vectors on the wire: int32 [P] and int64 [S + 1]."""


class MaskedServer(ServerProtection):
    """Sees masked vectors and, once enough sites have opened their sum, that sum."""

    sealed = True

    def __init__(self, settings: ProtectionSettings) -> None:
        self.settings = settings
        self._report: dict[str, Any] = {}

    def expect(self, declared: Declared) -> None:
        self.run_id, self.weighing, self.layout = declared.run_id, declared.weighing, declared.layout

    def open(self, number: int, sites: list[str], quorum: int, talk: Talk) -> Opened:
        started = time.monotonic()
        self.coordinator = Coordinator(self._terms(number, sites))
        terms = self.coordinator.terms.to_json()
        told = talk(KEYS, sites, {SECURE: {"terms": terms}}, self._taking("add_advert"), quorum)
        adverts = self.coordinator.adverts()
        shared = talk(
            SHARES, sorted(adverts), {SECURE: {"adverts": adverts}}, self._taking("add_shares"), quorum
        )
        shares = self.coordinator.shares()
        self._report = {"terms": terms, "keys_seconds": round(time.monotonic() - started, 3)}
        absent = {**_named(told, "keys"), **_named(shared, "shares")}
        options = {"shares": shares, "weighing": self.weighing.to_json()}
        silent = [*told.silent, *shared.silent]
        return Opened(sites=sorted(shares), options={SECURE: options}, absent=absent, silent=silent)

    def _terms(self, number: int, sites: list[str]) -> Terms:
        """What this round's sites agree on; ConfigError for a threshold that is no majority of them."""
        return Terms.of(
            self.layout,
            sites=sites,
            threshold=self.settings.threshold,
            run_id=self.run_id,
            round=number,
            most_weight=self.weighing.most,
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
        self.coordinator.add_masked(site, tensors[NARROW], tensors[WIDE])

    def close(self, talk: Talk) -> Update | None:
        started = time.monotonic()
        survivors, threshold = self.coordinator.survivors(), self.coordinator.terms.threshold
        confirmed = talk(
            CONFIRM,
            survivors,
            {SECURE: {"survivors": survivors}},
            self._taking("add_confirmation"),
            threshold,
        )
        if len(confirmed.facts) < threshold:
            raise RunError(_too_few("confirm", confirmed, threshold))
        told = {SECURE: {"confirmations": self.coordinator.confirmations()}}
        opened = talk(REVEAL, sorted(confirmed.facts), told, self._taking("add_reveal"), threshold)
        if len(opened.facts) < threshold:
            raise RunError(_too_few("reveal", opened, threshold))
        found = self.coordinator.result()
        self._report |= {"survivors": survivors, "open_seconds": round(time.monotonic() - started, 3)}
        self._report["lost"] = {**_named(confirmed, "confirm"), **_named(opened, "reveal")}
        delta, sums = wire.without_prefix(self.layout.unpack(found.narrow, found.wide), wire.SUM)
        return Update(delta=delta, examples=max(1, round(found.weight)), sums=sums)

    def report(self) -> dict[str, Any]:
        return self._report


def _named(outcome: Outcome, step: str) -> dict[str, str]:
    """Site -> reason with the step in which it was lost."""
    return {site: f"{step} of the secure sum: {reason}" for site, reason in outcome.absent.items()}


def _too_few(step: str, outcome: Outcome, threshold: int) -> str:
    lost = "; ".join(f"{site}: {reason}" for site, reason in sorted(outcome.absent.items()))
    return (
        f"the sum of the masked updates cannot be opened: {len(outcome.facts)} sites answered '{step}', "
        f"{threshold} are needed. {lost}. Nothing of this round was read."
    )
