# SPDX-License-Identifier: Apache-2.0
"""The server's side of one round of secure aggregation (Bonawitz et al. 2017): passes on, sums, unmasks.

A phase is over as soon as its outcome is asked for; who comes later is refused and counts as dropped out.
What a site says is checked when it is added, so that a bad message costs that site its round and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from medflare.core.errors import UpdateError
from medflare.secure_aggregation import masked, peers, shamir, unmasking
from medflare.secure_aggregation import secret_sharing as dealing
from medflare.secure_aggregation.errors import BrokenProtocol, too_few
from medflare.secure_aggregation.exchange import Pair
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked import Masked
from medflare.secure_aggregation.messages import take_bytes
from medflare.secure_aggregation.recovery import recover
from medflare.secure_aggregation.round_parameters import Terms
from medflare.secure_aggregation.unmasking import SecureSum

PHASES = ("advertise", "share", "mask", "confirm", "reveal", "unmask")
Message = Mapping[str, Any]


class Coordinator:
    """One round at the server.

    Args:
        terms: what was agreed; layout: the one `terms` are about.
        identity: the server's own, to verify what sites sign; `Identity.unsigned` in a simulator.
    """

    def __init__(self, terms: Terms, layout: Layout, identity: Identity) -> None:
        self.terms, self.layout, self.identity = terms, layout, identity
        self.blamed: dict[str, str] = {}
        self._phase = 0
        self._adverts: dict[str, Message] = {}
        self._peers: dict[str, peers.Peer] = {}
        self._shares: dict[str, Message] = {}
        self._total: Masked | None = None
        self._survivors: set[str] = set()
        self._confirmations: dict[str, Message] = {}
        self._reveals: dict[str, dict[str, dict[str, bytes]]] = {}

    def add_advert(self, site: str, advert: Message) -> None:
        """A site's public keys; UntrustedSite or BrokenProtocol leaves it out."""
        self._admit("advertise", site, self.terms.sites, self._adverts)
        peer = peers.read_advert(self.identity, self.terms, site, advert)
        peers.check_distinct({**self._peers, site: peer})
        self._adverts[site], self._peers[site] = dict(advert), peer

    def adverts(self) -> dict[str, Message]:
        """What every member's `share` gets; TooFewSites below the threshold, as all that follow."""
        self._close("advertise", self._adverts, "gave their keys")
        return dict(self._adverts)

    def add_shares(self, site: str, message: Message) -> None:
        """A site's sealed shares for the others, with its commitments; BrokenProtocol leaves it out."""
        self._admit("share", site, self._adverts, self._shares)
        if not _complete(message, site, set(self._adverts)):
            raise self._refusal("share", site, "did not send sealed shares and commitments for every site")
        for holder in message["sealed"]:
            take_bytes(message["sealed"], holder, dealing.SEALED, phase="share", site=site)
        self._shares[site] = dict(message)

    def shares_for(self, site: str) -> dict[str, Message]:
        """What one member's `mask` gets: what every other site sealed for it."""
        self._close("share", self._shares, "shared their secrets")
        return {
            dealer: {"sealed": message["sealed"][site], "held": message["held"][site]}
            for dealer, message in self._shares.items()
            if dealer != site
        }

    def add_masked(self, site: str, update: Masked) -> None:
        """Adds a masked update; UpdateError for another round's, other shapes, a second, a stranger's."""
        problem = self._problem("mask", site, self._shares, self._survivors)
        if problem:
            raise UpdateError(f"masked update: '{site}' {problem}.")
        if update.terms != self.terms.digest:
            raise UpdateError(f"masked update of '{site}' belongs to another round, run or set of sites.")
        if self._total is None:
            self._total = masked.empty(self.terms)
        for name in ("narrow", "wide"):
            total, given = getattr(self._total, name), getattr(update, name)
            if (given.dtype, given.shape) != (total.dtype, total.shape):
                raise UpdateError(
                    f"masked update of '{site}' has {given.dtype} {tuple(given.shape)} as its {name} vector, "
                    f"expected {total.dtype} {tuple(total.shape)}."
                )
        self._total.narrow.add_(update.narrow)
        self._total.wide.add_(update.wide)
        self._survivors.add(site)

    def survivors(self) -> list[str]:
        """Whose updates are in the sum, in order of name: what every member's `confirm` gets."""
        self._close("mask", self._survivors, "sent masked updates")
        return sorted(self._survivors)

    def add_confirmation(self, site: str, message: Message) -> None:
        """A survivor's signed word; BrokenProtocol if it is about others or its signature does not hold."""
        self._admit("confirm", site, self._survivors, self._confirmations)
        certificate, told = self._peers[site].certificate, sorted(self._survivors)
        if not peers.confirms(self.identity, self.terms, told, site, certificate, message):
            raise self._refusal("confirm", site, "does not confirm the survivors under its signature")
        self._confirmations[site] = dict(message)

    def confirmations(self) -> dict[str, Message]:
        """What every member's `reveal` gets."""
        self._close("confirm", self._confirmations, "confirmed the survivors")
        return dict(self._confirmations)

    def add_reveal(self, site: str, message: Message) -> None:
        """A site's shares of others' secrets; BrokenProtocol if they are not the ones that are needed."""
        self._admit("reveal", site, self._confirmations, self._reveals)
        needed = {"self": self._survivors, "mask": self._shares.keys() - self._survivors}
        if any(not _is_about(message, secret, sites) for secret, sites in needed.items()):
            raise self._refusal(
                "reveal", site, "did not show one share of every site's secret that is needed"
            )
        self._reveals[site] = {
            secret: {
                dealer: take_bytes(message[secret], dealer, shamir.SIZE, phase="reveal", site=site)
                for dealer in sites
            }
            for secret, sites in needed.items()
        }

    def result(self) -> SecureSum:
        """The weighted mean over the survivors.

        Raises TooFewSites, and BrokenProtocol where secrets cannot be recovered or the sum is impossible.
        """
        self._close("reveal", self._reveals, "showed their shares")
        self._enter("unmask")
        self._phase += 1
        seeds = {site: self._recovered(site, "self") for site in sorted(self._survivors)}
        gone = sorted(self._shares.keys() - self._survivors)
        pairs = {site: Pair(self._recovered(site, "mask")) for site in gone}
        mask_keys = {site: self._peers[site].mask_key for site in seeds}
        total, self._total = self._total, None
        assert total is not None, "nobody survives without a masked update"
        unmasking.unmask(self.terms, total, seeds, pairs, mask_keys)
        found = unmasking.decode(self.terms, self.layout, total, list(seeds))
        return replace(found, blamed=dict(sorted(self.blamed.items())))

    def _recovered(self, dealer: str, secret: str) -> bytes:
        message, public = self._shares[dealer], self._peers[dealer].mask_key
        shown = {site: reveal[secret][dealer] for site, reveal in self._reveals.items()}

        def fits(found: bytes) -> bool:
            if secret == "mask":
                return Pair(found).public == public
            return dealing.seed_commitment(self.terms, dealer, found) == message["seed"]

        recovered = recover(self.terms, dealer, secret, message["held"], shown, fits)
        self.blamed.update(recovered.blamed)
        return recovered.secret

    def _enter(self, phase: str) -> None:
        if self._now != phase:
            raise BrokenProtocol(
                f"secure aggregation: asked to {phase} when the round is at '{self._now}'.", phase=phase
            )

    @property
    def _now(self) -> str:
        return PHASES[self._phase] if self._phase < len(PHASES) else "over"

    def _admit(self, phase: str, site: str, known: Iterable[str], already: Iterable[str]) -> None:
        problem = self._problem(phase, site, known, already)
        if problem:
            raise self._refusal(phase, site, problem)

    def _problem(self, phase: str, site: str, known: Iterable[str], already: Iterable[str]) -> str | None:
        """Why a message cannot be taken: of a stranger, too late, too early, a second one; or None."""
        if site not in known:
            return "was not asked, or dropped out before"
        if site in already:
            return "sent a second message"
        return None if self._now == phase else f"speaks of '{phase}' when the round is at '{self._now}'"

    def _refusal(self, phase: str, site: str, problem: str) -> BrokenProtocol:
        return BrokenProtocol(f"secure aggregation, {phase}: '{site}' {problem}.", phase=phase, sites=[site])

    def _close(self, phase: str, present: Iterable[str], what: str) -> None:
        """Ends a phase the first time its outcome is asked for."""
        here = PHASES.index(phase)
        if self._phase < here:
            self._enter(phase)
        if self._phase == here:
            if len(set(present)) < self.terms.threshold:
                raise too_few(phase, present, self.terms.sites, self.terms.threshold, what)
            self._phase += 1


def _is_about(message: Any, key: str, sites: Set[str]) -> bool:
    """Whether there is an entry for exactly these sites under a key of a message, which may be anything."""
    found = message.get(key) if isinstance(message, Mapping) else None
    return isinstance(found, Mapping) and set(found) == sites


def _complete(message: Any, site: str, everyone: set[str]) -> bool:
    return (
        _is_about(message, "held", everyone)
        and _is_about(message, "sealed", everyone - {site})
        and isinstance(message.get("seed"), str)
        and all(isinstance(words, list) and len(words) == 2 for words in message["held"].values())
    )
