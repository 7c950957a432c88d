# SPDX-License-Identifier: Apache-2.0
"""The server's side of homomorphic encryption: it adds what it cannot read, and sends the sums down.

The state of a run is θ_r = θ_0 + Σ_g S_g / W_g: the first values, which are public, and one encrypted sum S_g
for all rounds whose accepted weights add up to the same W_g. Nothing is multiplied under encryption, so no
precision is lost however many rounds there are, and a site that missed rounds needs only the next request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from medflare.errors import UpdateError
from medflare.federation.protections.base import Declared, Opened, ServerProtection, Talk
from medflare.federation.protections.settings import ProtectionSettings
from medflare.learners.base import State, Update
from medflare.privacy.encryption import Adder
from medflare.privacy.encryption_keys import check_alike, read_server_context
from medflare.privacy.encryption_parameters import SERVER_FILE
from medflare.privacy.encryption_schemes import Terms
from medflare.privacy.terms import WIDE_BOUND

ENCRYPTED = "encrypted"
"""Key of what a request says about ciphertexts, and prefix of their names on the wire."""
MEANS, SUMS = f"{ENCRYPTED}:means", f"{ENCRYPTED}:sums"
"""An update's weighted values and its sums; the sums only where a method declares any."""
STEP = 2.0**-20
"""To what sums and counters are rounded: they may be large, and take several slots a value."""


class EncryptedServer(ServerProtection):
    """Holds the first values in the clear and everything that was learned as ciphertexts."""

    sealed = True
    readable = False

    def __init__(self, settings: ProtectionSettings, startup: Path) -> None:
        self.settings = settings
        self.keys = read_server_context(startup / SERVER_FILE)
        self.groups: dict[float, Adder] = {}
        self.totals: Tensor | None = None

    def expect(self, declared: Declared) -> None:
        check_alike(self.keys, declared.described)
        self.weighing, self.layout = declared.weighing, declared.layout
        self.sites = len(declared.described)
        every = self.sites * declared.rounds
        self.terms: dict[str, dict[str, Any]] = {
            "means": {"bound": self.settings.bound, "additions": every},
            "sums": {"bound": WIDE_BOUND, "additions": self.sites, "step": STEP},
        }

    def open(self, number: int, sites: list[str], quorum: int, talk: Talk) -> Opened:
        self.means, self.sums, self.weight = self._adder("means"), self._adder("sums"), 0.0
        return Opened(sites=sites)

    def _adder(self, what: str) -> Adder:
        return Adder(self.keys, Terms(**self.terms[what]))

    def take(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        wanted = {MEANS, SUMS} if self.layout.sums else {MEANS}
        if set(tensors) != wanted:
            raise UpdateError(f"holds {sorted(tensors)[:4]}; expected {sorted(wanted)}")
        weight = self.weighing.weight(facts) / self.weighing.most
        self.means.add(tensors[MEANS])
        if self.layout.sums:
            self._add_sums(tensors)
        self.weight += weight

    def _add_sums(self, tensors: State) -> None:
        """The second part of an update; without it the first is taken off again."""
        try:
            self.sums.add(tensors[SUMS])
        except UpdateError:
            self.means.remove(tensors[MEANS])
            raise

    def close(self, talk: Talk) -> Update | None:
        return None

    def keep(self) -> None:
        weight = round(self.weight, 12)
        self.groups.setdefault(weight, self._adder("means")).add(self.means.total())
        self.totals = self.sums.total() if self.layout.sums else None

    def down(self, state: State, totals: State) -> tuple[State, dict[str, Any]]:
        tensors = dict(state)
        for place, adder in enumerate(self.groups.values()):
            tensors[f"{ENCRYPTED}:{place}"] = adder.total()
        if self.totals is not None:
            tensors[SUMS] = self.totals
        told = {"terms": self.terms, "weights": list(self.groups), "weighing": self.weighing.to_json()}
        return tensors, {ENCRYPTED: told}

    def report(self) -> dict[str, Any]:
        return {"weight": self.weight, "groups": len(self.groups), "keys": self.keys.facts()}
