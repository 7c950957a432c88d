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

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.federation.protections.base import Declared, Opened, Round, ServerProtection, Talk
from medflare.federation.protections.encrypted_parts import (
    ENCRYPTED,
    SUMS,
    on_wire,
    read_terms,
    sizes,
    terms_of,
)
from medflare.federation.protections.settings import ProtectionSettings
from medflare.secure_aggregation.encryption import Adder
from medflare.secure_aggregation.encryption_keys import check_alike, read_server_context
from medflare.secure_aggregation.encryption_message import unpack
from medflare.secure_aggregation.encryption_parameters import SERVER_FILE


class EncryptedServer(ServerProtection):
    """Holds the first values in the clear and everything that was learned as ciphertexts."""

    sealed = True
    readable = False

    def __init__(self, settings: ProtectionSettings, startup: Path) -> None:
        self.settings = settings
        self.keys = read_server_context(startup / SERVER_FILE)
        self.groups: dict[float, dict[str, Adder]] = {}
        self._brought: dict[str, Tensor] = {}

    def expect(self, declared: Declared) -> None:
        check_alike(self.keys, declared.described)
        self.weighing, layout = declared.weighing, declared.layout
        self.parts = list(sizes(layout))
        self.told = terms_of(layout, self.settings.bound, len(declared.described), declared.rounds)
        self.terms = read_terms(self.told)

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        return 0

    def open(self, coming: Round, talk: Talk) -> Opened:
        self.adders, self.weight = self._adders(), 0.0
        return Opened(sites=coming.sites)

    def _adders(self) -> dict[str, Adder]:
        return {part: Adder(self.keys, self.terms[part]) for part in self.parts}

    def take(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        wanted = {on_wire(part): part for part in self.parts}
        if set(tensors) != set(wanted):
            raise UpdateError(f"holds {sorted(tensors)[:4]}; expected {sorted(wanted)}")
        weight = self.weighing.weight(facts) / self.weighing.most
        added: list[str] = []
        try:
            for name, part in wanted.items():
                self._check_single(name, tensors[name])
                self.adders[part].add(tensors[name])
                added.append(name)
        except UpdateError:
            for name in added:
                self.adders[wanted[name]].remove(tensors[name])
            raise
        self.weight += weight

    def _check_single(self, name: str, message: Tensor) -> None:
        """A site sends its own update; only totals hold more, and fill the room of a sum."""
        added = unpack(message)[0].added
        if added != 1:
            raise UpdateError(f"'{name}' tells that it sums {added} updates; expected a site's own one")

    def close(self, talk: Talk) -> Update | None:
        return None

    def keep(self) -> None:
        if self.weight:  # of a round in which nobody had examples there is nothing to add
            group = self.groups.setdefault(round(self.weight, 12), self._adders())
            for part in self.parts:
                if part != SUMS:
                    group[part].add(self.adders[part].total())
        self._brought = {
            on_wire(part, place): adder.total()
            for place, adders in enumerate(self.groups.values())
            for part, adder in adders.items()
            if part != SUMS
        }
        if SUMS in self.parts:
            self._brought[on_wire(SUMS)] = self.adders[SUMS].total()

    def down(self, state: State, totals: State) -> tuple[State, dict[str, Any]]:
        return {**state, **self._brought}, {ENCRYPTED: self.values()}

    def values(self) -> dict[str, Any]:
        """With which weights the groups of ciphertexts are divided, and under which terms they were made."""
        return {"weights": list(self.groups), "terms": self.told, "weighing": self.weighing.to_json()}

    def report(self) -> dict[str, Any]:
        return {"weight": self.weight, "groups": len(self.groups), "keys": self.keys.facts()}
