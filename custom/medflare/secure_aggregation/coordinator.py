# SPDX-License-Identifier: Apache-2.0
"""The server's side of one round of masked aggregation (Bonawitz et al. 2017): relays, sums and unmasks.

A round has the phases advertise, share, mask, confirm, reveal and unmask. Reading the outcome of a phase ends
it; later messages are refused, and their sites count as dropped out. A message is checked when it is added,
so that a bad one excludes its own site and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from medflare.core.errors import UpdateError
from medflare.secure_aggregation import masked_update, secret_sharing, shamir, signed_messages, unmasking
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.key_agreement import KeyPair
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.masking_errors import BrokenProtocol, too_few
from medflare.secure_aggregation.protocol_bytes import decode_bytes
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.secure_aggregation.share_recovery import recover
from medflare.secure_aggregation.unmasking import SecureSum

PHASES = ("advertise", "share", "mask", "confirm", "reveal", "unmask")
Message = Mapping[str, Any]


class Coordinator:
    """One round at the server.

    Args:
        parameters: what was agreed; layout: the one that they describe.
        identity: of the server, to verify what sites sign; `Identity.unsigned` in a simulator.
    """

    def __init__(self, parameters: RoundParameters, layout: Layout, identity: Identity) -> None:
        self.parameters, self.layout, self.identity = parameters, layout, identity
        self.blamed: dict[str, str] = {}
        self._phase = 0
        self._adverts: dict[str, Message] = {}
        self._peers: dict[str, signed_messages.Peer] = {}
        self._shares: dict[str, Message] = {}
        self._total: Masked | None = None
        self._survivors: set[str] = set()
        self._confirmations: dict[str, Message] = {}
        self._reveals: dict[str, dict[str, dict[str, bytes]]] = {}

    def add_advert(self, site: str, advert: Message) -> None:
        """Take a site's signed public keys; UntrustedSite or BrokenProtocol excludes the site."""
        self._admit("advertise", site, self.parameters.sites, self._adverts)
        peer = signed_messages.read_advert(self.identity, self.parameters, site, advert)
        signed_messages.check_distinct({**self._peers, site: peer})
        self._adverts[site], self._peers[site] = dict(advert), peer

    def adverts(self) -> dict[str, Message]:
        """Return the input of every member's `share`; TooFewSites below the threshold, as in later phases."""
        self._close("advertise", self._adverts, "gave their keys")
        return dict(self._adverts)

    def add_shares(self, site: str, message: Message) -> None:
        """Take a site's sealed shares and its commitments to them; BrokenProtocol excludes the site."""
        self._admit("share", site, self._adverts, self._shares)
        if not _complete(message, site, set(self._adverts)):
            raise self._refusal("share", site, "did not send sealed shares and commitments for every site")
        for holder in message["sealed"]:
            decode_bytes(message["sealed"], holder, secret_sharing.SEALED, phase="share", site=site)
        self._shares[site] = dict(message)

    def shares_for(self, site: str) -> dict[str, Message]:
        """Return the input of one member's `mask`: what every other site sealed for it."""
        self._close("share", self._shares, "shared their secrets")
        return {
            dealer: {"sealed": message["sealed"][site], "held": message["held"][site]}
            for dealer, message in self._shares.items()
            if dealer != site
        }

    def add_masked(self, site: str, update: Masked) -> None:
        """Add a masked update to the sum.

        Raises:
            UpdateError: the update is of another round or shape, a second one, or of an unknown site.
        """
        problem = self._problem("mask", site, self._shares, self._survivors)
        if problem:
            raise UpdateError(f"masked update: '{site}' {problem}.")
        if update.round_digest != self.parameters.digest:
            raise UpdateError(f"masked update of '{site}' belongs to another round, run or set of sites.")
        if self._total is None:
            self._total = masked_update.empty(self.parameters)
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
        """Return whose updates are in the sum, in order of name: the input of every member's `confirm`."""
        self._close("mask", self._survivors, "sent masked updates")
        return sorted(self._survivors)

    def add_confirmation(self, site: str, message: Message) -> None:
        """Take a survivor's signed list of survivors; BrokenProtocol if the list or signature is wrong."""
        self._admit("confirm", site, self._survivors, self._confirmations)
        certificate, survivors = self._peers[site].certificate, sorted(self._survivors)
        if not signed_messages.confirms(
            self.identity, self.parameters, survivors, site, certificate, message
        ):
            raise self._refusal("confirm", site, "does not confirm the survivors under its signature")
        self._confirmations[site] = dict(message)

    def confirmations(self) -> dict[str, Message]:
        """Return the input of every member's `reveal`."""
        self._close("confirm", self._confirmations, "confirmed the survivors")
        return dict(self._confirmations)

    def add_reveal(self, site: str, message: Message) -> None:
        """Take a site's shares of others' secrets; BrokenProtocol if they are not exactly those needed."""
        self._admit("reveal", site, self._confirmations, self._reveals)
        # Of a survivor only the self-mask's seed is revealed, of a dropped site only its mask key. Both
        # secrets of one site would let the server unmask that site's update alone.
        needed = {"self": self._survivors, "mask": self._shares.keys() - self._survivors}
        if any(not _is_about(message, secret, sites) for secret, sites in needed.items()):
            raise self._refusal(
                "reveal", site, "did not show one share of every site's secret that is needed"
            )
        self._reveals[site] = {
            secret: {
                dealer: decode_bytes(message[secret], dealer, shamir.SIZE, phase="reveal", site=site)
                for dealer in sites
            }
            for secret, sites in needed.items()
        }

    def result(self) -> SecureSum:
        """Return the weighted mean over the survivors.

        Raises:
            TooFewSites: fewer than the threshold revealed shares.
            BrokenProtocol: a secret cannot be recovered, or the sum is impossible.
        """
        self._close("reveal", self._reveals, "showed their shares")
        self._enter("unmask")
        self._phase += 1  # before anything can fail: a round is unmasked once
        # Survivors' self-masks are in the sum; so are their pairwise masks with sites that shared secrets and
        # then sent nothing, since only the missing update would have cancelled them.
        seeds = {site: self._recovered(site, "self") for site in sorted(self._survivors)}
        dropped = sorted(self._shares.keys() - self._survivors)
        pairs = {site: KeyPair(self._recovered(site, "mask")) for site in dropped}
        mask_keys = {site: self._peers[site].mask_key for site in seeds}
        total, self._total = self._total, None
        assert total is not None, "a survivor has sent a masked update"
        unmasking.unmask(self.parameters, total, seeds, pairs, mask_keys)
        mean = unmasking.decode(self.parameters, self.layout, total, list(seeds))
        return replace(mean, blamed=dict(sorted(self.blamed.items())))

    def _recovered(self, dealer: str, secret: str) -> bytes:
        """Return a dealer's secret from the revealed shares, and record who dealt or showed wrong ones."""
        message, public = self._shares[dealer], self._peers[dealer].mask_key
        shown = {site: reveal[secret][dealer] for site, reveal in self._reveals.items()}

        def fits(candidate: bytes) -> bool:
            if secret == "mask":  # its public half was advertised; the seed has a commitment instead
                return KeyPair(candidate).public == public
            return secret_sharing.seed_commitment(self.parameters, dealer, candidate) == message["seed"]

        recovered = recover(self.parameters, dealer, secret, message["held"], shown, fits)
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
        """Return why a message cannot be taken: unknown site, second message, wrong phase; or None."""
        if site not in known:
            return "was not asked, or dropped out before"
        if site in already:
            return "sent a second message"
        return None if self._now == phase else f"speaks of '{phase}' when the round is at '{self._now}'"

    def _refusal(self, phase: str, site: str, problem: str) -> BrokenProtocol:
        return BrokenProtocol(f"secure aggregation, {phase}: '{site}' {problem}.", phase=phase, sites=[site])

    def _close(self, phase: str, present: Iterable[str], what: str) -> None:
        """End a phase the first time its outcome is read; TooFewSites below the threshold."""
        current = PHASES.index(phase)
        if self._phase < current:
            self._enter(phase)
        if self._phase == current:
            if len(set(present)) < self.parameters.threshold:
                raise too_few(phase, present, self.parameters.sites, self.parameters.threshold, what)
            self._phase += 1


def _is_about(message: Any, key: str, sites: Set[str]) -> bool:
    """Return whether a message, which may be anything, has entries for exactly these sites under a key."""
    entries = message.get(key) if isinstance(message, Mapping) else None
    return isinstance(entries, Mapping) and set(entries) == sites


def _complete(message: Any, site: str, everyone: set[str]) -> bool:
    """Return whether a message has commitments for all sites and sealed shares for all but its sender."""
    return (
        _is_about(message, "held", everyone)
        and _is_about(message, "sealed", everyone - {site})
        and isinstance(message.get("seed"), str)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in message["held"].values())
    )
