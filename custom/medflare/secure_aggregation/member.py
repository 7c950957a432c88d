# SPDX-License-Identifier: Apache-2.0
"""A site's side of one round of secure aggregation (Bonawitz et al. 2017, figure 4).

advertise -> share -> mask -> confirm -> reveal, each once and in this order; a step that fails is over too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medflare.core.secure_random import SecureRandom
from medflare.secure_aggregation import key_agreement, keystream, secret_sharing, shamir, signed_messages
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked, encode
from medflare.secure_aggregation.masking_errors import BrokenProtocol, too_few
from medflare.secure_aggregation.protocol_bytes import decode_bytes, encode_bytes
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters

PHASES = ("advertise", "share", "mask", "confirm", "reveal")
Messages = Mapping[str, Mapping[str, Any]]
"""Site -> its message."""


class Member:
    """One site in one round; a new one is made for the next.

    Args:
        identity: the site's name, key and certificate.
        layout: what the site declared before round 1.
        limits: the site's own policy.
        random: (packed update) -> the numbers for its noise of differential privacy; None draws them from the
            operating system.
    """

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        limits: Limits | None = None,
        random: Callable[[Tensor], SecureRandom] | None = None,
    ) -> None:
        self.name, self.identity, self.layout = identity.name, identity, layout
        self.random = random or (lambda values: SecureRandom())
        self.limits = limits or Limits()
        self._done = 0

    def advertise(self, parameters: RoundParameters) -> dict[str, Any]:
        """Return fresh public keys, signed.

        Raises:
            BrokenProtocol: the parameters are against the site's policy, or describe other tensors.
        """
        self._enter("advertise")
        problem = self.limits.problem(parameters, self.name)
        if parameters.layout != self.layout.digest:
            problem = "they describe other tensors than those this site declared before round 1"
        if problem:
            raise self._refusal("advertise", f"does not agree to the terms: {problem}")
        self.parameters = parameters
        self._share_pair, self._mask_pair = key_agreement.KeyPair(), key_agreement.KeyPair()
        return signed_messages.make_advert(
            self.identity, parameters, self._share_pair.public, self._mask_pair.public
        )

    def share(self, adverts: Messages) -> dict[str, Any]:
        """Return shares of this site's two secrets, each sealed for one holder, with commitments to all.

        adverts: every site's, this one's own among them. Raises UntrustedSite, TooFewSites, and
        BrokenProtocol where a key is missing, stands twice, or this site's own was exchanged.
        """
        self._enter("share")
        self._require("share", adverts, self.parameters.sites, "gave their keys")
        read = {
            site: signed_messages.read_advert(self.identity, self.parameters, site, adverts[site])
            for site in adverts
        }
        signed_messages.check_distinct(read)
        advertised = (self._share_pair.public, self._mask_pair.public)
        if self.name not in read or (read[self.name].share_key, read[self.name].mask_key) != advertised:
            raise self._refusal("share", "does not find the keys it gave among those the server passes on")
        self._peers, self._seed = read, os.urandom(shamir.SIZE)
        dealt = secret_sharing.split_secrets(self.parameters, self._mask_pair.private, self._seed, read)
        held = {
            site: secret_sharing.commitments(self.parameters, self.name, site, dealt[site]) for site in dealt
        }
        self._shares = {self.name: dealt.pop(self.name)}
        return {
            "seed": secret_sharing.seed_commitment(self.parameters, self.name, self._seed),
            "held": held,
            "sealed": {site: encode_bytes(self._sealed(site, shares)) for site, shares in dealt.items()},
        }

    def mask(self, shares: Messages, narrow: Tensor, wide: Tensor, weight: float) -> Masked:
        """Return the update, weighted, in fixed point, under this site's own mask and one with every peer.

        shares: what other sites sealed for this one, `{site: {"sealed": ..., "held": [..., ...]}}`.
        narrow, wide: as `Layout.pack` made them. weight: above 0, or 0 where the parameters allow it, at most
            `parameters.most_weight`.

        In a canary the update is checked like any other, and zeros of the largest weight take its place
        under the masks: its sum tells that a round would work and nothing else.

        Raises UpdateError that names the tensor for a value beyond the declared bound, and for the weight;
        BrokenProtocol for shares that cannot be opened; TooFewSites.
        """
        self._enter("mask")
        others = self._peers.keys() - {self.name}
        self._require("mask", {*shares, self.name}, others | {self.name}, "shared their secrets")
        for site, message in shares.items():
            self._shares[site] = self._opened(site, message)
        out = encode(self.parameters, self.layout, narrow, wide, weight)
        noise = self.parameters.sum_noise
        if noise is not None and not self.parameters.canary:  # after the checks of `encode`, under every mask
            noisy = noise.add_to(narrow, self.parameters.narrow_ring, self.random(narrow))
            out.narrow.copy_(torch.from_numpy(noisy))
        if self.parameters.canary:
            weight = self.parameters.most_weight
            out = encode(self.parameters, self.layout, narrow.mul(0), wide.mul(0), weight)
        plus = [key_agreement.self_mask_keys(self._seed, self.parameters.digest, self.name)]
        minus: list[key_agreement.MaskKeys] = []
        for site in shares:
            secret = self._agree(self._mask_pair, "mask", site, self._peers[site].mask_key)
            mask_keys = key_agreement.pair_mask_keys(secret, self.parameters.digest, self.name, site)
            # one of two sites adds the pairwise mask and the other subtracts it: in the sum they cancel
            (plus if self.name < site else minus).append(mask_keys)
        for place, vector in enumerate((out.narrow, out.wide)):
            keystream.apply(vector, [keys[place] for keys in plus], [keys[place] for keys in minus])
        del self._seed, self._mask_pair  # a second vector under the same masks would reveal a difference
        return out

    def confirm(self, survivors: Sequence[str]) -> dict[str, Any]:
        """Return a signature over whose updates are in the sum; after it this site unmasks no other set.

        Raises BrokenProtocol if this site is missing although it sent, or one is named with which it has no
        mask in common; TooFewSites below the threshold or this site's own minimum.
        """
        self._enter("confirm")
        self._require("confirm", survivors, self._shares, "sent masked updates", self.limits.min_sites)
        if self.name not in survivors:
            raise self._refusal("confirm", "sent its masked update, and the server says it did not")
        self.survivors = tuple(sorted(set(survivors)))
        return signed_messages.make_confirmation(self.identity, self.parameters, self.survivors)

    def reveal(self, confirmations: Messages) -> dict[str, Any]:
        """Return shares of survivors' self-masks and of other sites' mask keys; never both of one site.

        confirmations: what survivors' `confirm` gave. Raises TooFewSites unless a threshold of them confirms
        the very set this site confirmed.
        """
        self._enter("reveal")
        agreed = [site for site, message in confirmations.items() if self._confirms(site, message)]
        self._require("reveal", agreed, self.survivors, "confirm the survivors this site was told")
        # self-mask of a survivor or mask key of a dropped site, never both: together they unmask its update
        shares = self._shares
        del self._shares, self._share_pair
        return {
            secret: {
                site: encode_bytes(dealt.share(secret))
                for site, dealt in shares.items()
                if (site in self.survivors) == (secret == "self")
            }
            for secret in secret_sharing.SECRETS
        }

    def _enter(self, phase: str) -> None:
        """Steps come in order, each once, whether it succeeds or not."""
        expected = PHASES[self._done] if self._done < len(PHASES) else "nothing more in this round"
        if phase != expected:
            raise self._refusal(phase, f"was asked to {phase} out of turn; expected: {expected}")
        self._done += 1

    def _require(
        self, phase: str, present: Iterable[str], known: Iterable[str], what: str, least: int = 0
    ) -> None:
        """At least the threshold, and nobody else than who is known."""
        strangers = sorted(set(present) - set(known))
        if strangers:
            raise self._refusal(phase, f"knows nothing of {', '.join(strangers)} in this phase", strangers)
        needed = max(self.parameters.threshold, least)
        if len(set(present)) < needed:
            raise too_few(phase, present, self.parameters.sites, needed, what)

    def _refusal(self, phase: str, problem: str, sites: Iterable[str] = ()) -> BrokenProtocol:
        return BrokenProtocol(
            f"secure aggregation, {phase}: site '{self.name}' {problem}. It takes no further "
            "part in this round.",
            phase=phase,
            sites=sites or [self.name],
        )

    def _agree(self, pair: key_agreement.KeyPair, phase: str, site: str, key: bytes) -> bytes:
        try:
            return pair.agree(key)
        except ValueError:
            raise self._refusal(phase, f"was given a key of '{site}' that is no X25519 key", [site]) from None

    def _sealed(self, holder: str, shares: secret_sharing.HolderShares) -> bytes:
        agreed = self._agree(self._share_pair, "share", holder, self._peers[holder].share_key)
        return secret_sharing.seal(self.parameters, self.name, holder, shares, agreed)

    def _opened(self, dealer: str, message: Mapping[str, Any]) -> secret_sharing.HolderShares:
        sealed = decode_bytes(message, "sealed", secret_sharing.SEALED, phase="mask", site=dealer)
        agreed = self._agree(self._share_pair, "mask", dealer, self._peers[dealer].share_key)
        opened = secret_sharing.open_sealed(
            self.parameters, dealer, self.name, sealed, message.get("held"), agreed
        )
        if opened is None:
            raise self._refusal(
                "mask",
                f"cannot open the shares of '{dealer}': they are of another round or run, were changed on "
                "the way, or are not what their sender committed itself to",
                [dealer],
            )
        return opened

    def _confirms(self, site: str, message: Mapping[str, Any]) -> bool:
        if site not in self.survivors:
            return False
        certificate = self._peers[site].certificate
        return signed_messages.confirms(
            self.identity, self.parameters, self.survivors, site, certificate, message
        )
