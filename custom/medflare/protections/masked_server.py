# SPDX-License-Identifier: Apache-2.0
"""The server's side of secure aggregation by masking: five exchanges a round, and one sum at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from medflare.core.errors import UpdateError
from medflare.core.patient_privacy import Mechanism
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.differential_privacy.accounting import epsilon
from medflare.protections.base import (
    SECURE,
    OpenedRound,
    RunDeclaration,
    ServerProtection,
    StepChannel,
    UpcomingRound,
    layout_of,
)
from medflare.protections.settings import ProtectionSettings, SumPrivacySettings
from medflare.protections.weighting import UpdateWeighting
from medflare.protocol.messages import CONFIRM, KEYS, REVEAL, SHARES, Reply
from medflare.protocol.outcome import OnReply, Outcome, TooFewError
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.masking_errors import MaskingError
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.wire.durable import read_json, write_json

NARROW, WIDE = "masked:narrow", "masked:wide"
"""An update's two vectors on the wire: int32 [P] and int64 [S + 1]."""
UNWEIGHTED = UpdateWeighting(by="uniform", max_weight=1.0)
"""Sums alone are added as they are."""
REVEALED = "revealed_sum.json"
"""In the run's folder."""
ADD: Mapping[str, Callable[[Coordinator, str, Any], None]] = {
    KEYS: Coordinator.add_advert,
    SHARES: Coordinator.add_shares,
    CONFIRM: Coordinator.add_confirmation,
    REVEAL: Coordinator.add_reveal,
}
"""Step -> what takes a site's answer to it."""


class RevealedSum(BaseModel):
    """The last sum of updates whose shares were asked for; on disk before they are.

    Attributes:
        round: of the run. sites: over which it is, whoever of them revealed.
    """

    model_config = ConfigDict(extra="forbid")

    round: int
    canary: bool
    sites: list[str]

    @classmethod
    def read(cls, file: Path) -> RevealedSum | None:
        """Return what an earlier process of the run wrote; None where there is nothing, or it is damaged."""
        try:
            return cls.model_validate(read_json(file))
        except (OSError, ValueError):
            return None


def privacy_of_sites(dp: SumPrivacySettings, number: int, attempt: int) -> dict[str, Any]:
    """Return the epsilon of one site in the noisy sums of a run up to a round.

    Every round counts, opened or not, and one more for each process that died: it may have opened the sum
    that the next one repeats. Both parties know who takes part, so nothing is sampled.

    Args:
        number: of the round, from 0. attempt: how many processes have run the run before this one.
    """
    done = Mechanism(noise=dp.noise_multiplier, rate=1.0, steps=number + 1 + attempt)
    return {"unit": "site", "epsilon": round(epsilon([done], dp.delta), 6), "delta": dp.delta}


class MaskedServer(ServerProtection):
    """Sees masked vectors and, once enough sites have opened their sum, that sum.

    A round has the steps KEYS and SHARES before the sites train, FIT, and CONFIRM and REVEAL after it. Each
    step goes only to the sites that answered the one before, because masks cancel only over sites that hold
    each other's shares. A site that is lost between SHARES and FIT is not in the sum, and the shares of the
    others remove the masks it had in common with them; one that is lost after FIT stays in the sum, and they
    remove its own mask.
    """

    server_reads = "sum"

    def __init__(self, settings: ProtectionSettings, identity: Identity) -> None:
        self.settings, self.identity = settings, identity
        self._report: dict[str, Any] = {}
        self._unopened: list[str] = []
        self._note: Path | None = None
        self._interrupted: RevealedSum | None = None
        self._repeatable = True

    def expect(self, declaration: RunDeclaration) -> None:
        self.run_id, self.weighting = declaration.run_id, declaration.weighting
        self.attempt = declaration.attempt
        self.layout = declaration.layout
        if declaration.folder is not None:
            self._note = declaration.folder / REVEALED
            self._interrupted = RevealedSum.read(self._note)

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        return self.layout.narrow.size * self.settings.bits // 8 + (self.layout.wide.size + 1) * 8

    def open_round(self, upcoming: UpcomingRound, channel: StepChannel) -> OpenedRound:
        """Go through keys and shares; after a sum that was lost late, over its own sites alone.

        Sites that gave their shares for a sum take part in no sum of other sites from the same state
        (`opened_sums`), and a lost sum leaves the state as it was.
        """
        started, quorum, left_out = time.monotonic(), upcoming.quorum, dict[str, str]()
        # Sums of what is measured are of the same state, and of other unknowns: they are lost, not repeated.
        self._repeatable = upcoming.sums is None
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None and (interrupted.round, interrupted.canary) == (
            upcoming.number,
            upcoming.canary,
        ):
            self._unopened = interrupted.sites
        if self._repeatable and self._unopened and set(self._unopened) <= set(upcoming.sites):
            others = sorted(set(upcoming.sites) - set(self._unopened))
            left_out = dict.fromkeys(others, "the sum that was lost before is repeated over its own sites")
            upcoming = replace(upcoming, sites=list(self._unopened))
        self.current = self.layout if upcoming.sums is None else layout_of({}, upcoming.sums)
        self.coordinator = Coordinator(self._round_parameters(upcoming), self.current, self.identity)
        self._lost, self._silent, self._waited = left_out, list[str](), dict[str, float]()
        terms = self.coordinator.parameters.to_json()
        advertised = self._step(KEYS, upcoming.sites, {"terms": terms}, quorum, channel)
        adverts = {"adverts": self.coordinator.adverts()}
        shared = self._step(SHARES, advertised, adverts, quorum, channel)
        shares = {site: self.coordinator.shares_for(site) for site in shared}
        self._report = {"terms": terms, "keys_seconds": round(time.monotonic() - started, 3)}
        self._report |= self._privacy(upcoming.number)
        return OpenedRound(
            sites=shared,
            options={SECURE: {"shares": shares}},
            absent=dict(self._lost),
            silent=self._silent,
            waited=dict(self._waited),
        )

    def _step(
        self, task: str, sites: list[str], message: Mapping[str, Any], quorum: int, channel: StepChannel
    ) -> list[str]:
        """Return the clients that answered this step.

        `quorum` is what the job asks for and only ends the waiting; the threshold of the secret sharing is
        what decides: with fewer answers no later step could open the sum, so the round ends here, before the
        sites train for nothing.

        Raises:
            TooFewError: naming the missing clients, if fewer than the threshold answered.
        """
        outcome = channel.send_and_receive(
            task, sites, {SECURE: dict(message)}, self._on_answer(task), quorum
        )
        self._lost |= {site: f"'{task}' of the secure sum: {why}" for site, why in outcome.absent.items()}
        self._silent += outcome.silent
        self._waited |= outcome.waited
        threshold = self.coordinator.parameters.threshold
        if len(outcome.facts) < threshold:
            lost = "; ".join(f"{site}: {why}" for site, why in sorted(self._lost.items()))
            raise TooFewError(
                f"the sum of the masked updates cannot be opened: {len(outcome.facts)} sites answered "
                f"'{task}', {threshold} are needed. {lost}. Nothing of this round was read.",
                Outcome(absent=dict(self._lost), silent=self._silent, waited=self._waited),
            )
        return sorted(outcome.facts)

    def _round_parameters(self, upcoming: UpcomingRound) -> RoundParameters:
        """Return what this round's sites agree on; ConfigError for a threshold that is no majority."""
        weighting = self.weighting if upcoming.sums is None else UNWEIGHTED
        return RoundParameters.of(
            self.current,
            sites=upcoming.sites,
            threshold=self.settings.threshold,
            run_id=self.run_id,
            round=upcoming.number,
            canary=upcoming.canary,
            attempt=self.attempt,
            work=upcoming.work,
            weighing=weighting.by,
            most_weight=weighting.max_weight,
            idle=weighting.zero_weight,
            bits=self.settings.bits,
            bound=self.settings.bound,
            **self._noise(upcoming),
        )

    def _noise(self, upcoming: UpcomingRound) -> dict[str, Any]:
        """Return the parameters of distributed differential privacy; empty for sums of what is measured."""
        dp = self.settings.dp
        if dp is None or upcoming.sums is not None:
            return {}
        return {"clip": dp.clip_norm, "noise": dp.noise_multiplier, "colluding": dp.colluding}

    def _privacy(self, number: int) -> dict[str, Any]:
        """Return what the sums of a run have shown of one site up to a round; empty without noise."""
        dp = self.settings.dp
        if dp is None or not self.coordinator.parameters.noise:
            return {}
        return {"privacy": privacy_of_sites(dp, number, self.attempt)}

    def _on_answer(self, task: str) -> OnReply:
        """Return what hands a site's part of a step to the coordinator, with the reason if it is unusable."""

        def take(site: str, reply: Reply) -> str | None:
            try:
                ADD[task](self.coordinator, site, reply.facts[SECURE])
            except (MaskingError, UpdateError) as error:
                return f"secure sum: {error}"
            return None

        return take

    def add_sealed(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        if set(tensors) != {NARROW, WIDE}:
            raise UpdateError(f"holds {sorted(tensors)[:4]}; expected masked vectors '{NARROW}' and '{WIDE}'")
        terms = str(facts.get(SECURE, {}).get("terms"))
        self.coordinator.add_masked(site, Masked(terms, tensors[NARROW], tensors[WIDE]))

    def open_sum(self, channel: StepChannel) -> Update | None:
        started = time.monotonic()
        survivors, threshold = self.coordinator.survivors(), self.coordinator.parameters.threshold
        self._lost = {}
        # All sites confirm one list of survivors before any of them reveals a share: a server that showed
        # different lists to different sites could otherwise collect both kinds of shares of one site.
        confirmed = self._step(CONFIRM, survivors, {"survivors": survivors}, threshold, channel)
        confirmations = {"confirmations": self.coordinator.confirmations()}
        if self._repeatable:
            self._unopened = survivors
            self._remember(survivors)
        self._step(REVEAL, confirmed, confirmations, threshold, channel)
        result = self.coordinator.result()
        if self._repeatable:
            self._unopened = []
        self._report |= {**result.report(), "lost": self._lost}
        self._report["open_seconds"] = round(time.monotonic() - started, 3)
        # The total need not be whole, since sites may scale their weight; what weighs anything counts as one.
        examples = max(1, round(result.weight)) if result.weight else 0
        return Update.from_message(self.current.unpack(result.narrow, result.wide), {"examples": examples})

    def _remember(self, sites: list[str]) -> None:
        """Write down over whom a sum is about to be opened: if this process dies now, the next repeats it."""
        if self._note is not None:
            parameters = self.coordinator.parameters
            note = RevealedSum(round=parameters.round, canary=parameters.canary, sites=sites)
            write_json(self._note, note.model_dump())

    def state_values(self) -> dict[str, Any]:
        return {"unopened": self._unopened}

    def load_state(self, values: Mapping[str, Any], tensors: State) -> State:
        self._unopened = [str(site) for site in values.get("unopened", [])]
        return super().load_state(values, tensors)

    def report(self) -> dict[str, Any]:
        return self._report
