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
from medflare.protections.base import (
    OpenedRound,
    RunDeclaration,
    ServerProtection,
    StepChannel,
    UpcomingRound,
)
from medflare.protections.encrypted_parts import (
    ENCRYPTED,
    SUMS,
    on_wire,
    read_terms,
    sizes,
    terms_of,
)
from medflare.protections.settings import ProtectionSettings
from medflare.secure_aggregation.encryption import Adder
from medflare.secure_aggregation.encryption_keys import check_alike, read_server_context
from medflare.secure_aggregation.encryption_message import unpack
from medflare.secure_aggregation.encryption_parameters import SERVER_FILE


class EncryptedServer(ServerProtection):
    """Keeps the first values in the clear and everything that was learned as ciphertexts."""

    server_reads = "nothing"

    def __init__(self, settings: ProtectionSettings, startup: Path) -> None:
        self.settings = settings
        self.keys = read_server_context(startup / SERVER_FILE)
        self.groups: dict[float, dict[str, Adder]] = {}
        self._ciphertexts: dict[str, Tensor] = {}

    def expect(self, declaration: RunDeclaration) -> None:
        check_alike(self.keys, declaration.site_facts)
        self.weighting, layout = declaration.weighting, declaration.layout
        self.parts = list(sizes(layout))
        sites, rounds = len(declaration.site_facts), declaration.rounds
        self.terms_json = terms_of(layout, self.settings.bound, sites, rounds)
        self.terms = read_terms(self.terms_json)

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        return 0

    def open_round(self, upcoming: UpcomingRound, channel: StepChannel) -> OpenedRound:
        self.adders, self.weight = self._adders(), 0.0
        return OpenedRound(sites=upcoming.sites)

    def _adders(self) -> dict[str, Adder]:
        return {part: Adder(self.keys, self.terms[part]) for part in self.parts}

    def add_sealed(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        wanted = {on_wire(part): part for part in self.parts}
        if set(tensors) != set(wanted):
            raise UpdateError(f"holds {sorted(tensors)[:4]}; expected {sorted(wanted)}")
        weight = self.weighting.weight(facts) / self.weighting.max_weight
        added: list[str] = []
        try:
            for name, part in wanted.items():
                self._check_single(name, tensors[name])
                self.adders[part].add(tensors[name])
                added.append(name)
        except UpdateError:  # half an update must not stay in the sum
            for name in added:
                self.adders[wanted[name]].remove(tensors[name])
            raise
        self.weight += weight

    def _check_single(self, name: str, message: Tensor) -> None:
        """Refuse a message that sums several updates.

        A site sends its own update and nothing else; a total in its place would use up the headroom that the
        parameters leave for additions, and could make the sum overflow.
        """
        added = unpack(message)[0].added
        if added != 1:
            raise UpdateError(f"'{name}' tells that it sums {added} updates; expected a site's own one")

    def open_sum(self, channel: StepChannel) -> Update | None:
        return None

    def commit(self) -> None:
        if self.weight:  # of a round in which nobody had examples there is nothing to add
            group = self.groups.setdefault(round(self.weight, 12), self._adders())
            for part in self.parts:
                if part != SUMS:
                    group[part].add(self.adders[part].total())
        self._ciphertexts = {
            on_wire(part, place): adder.total()
            for place, adders in enumerate(self.groups.values())
            for part, adder in adders.items()
            if part != SUMS
        }
        if SUMS in self.parts:
            self._ciphertexts[on_wire(SUMS)] = self.adders[SUMS].total()

    def outgoing(self, state: State, totals: State) -> tuple[State, dict[str, Any]]:
        return {**state, **self._ciphertexts}, {ENCRYPTED: self.state_values()}

    def state_values(self) -> dict[str, Any]:
        """Return the weights that divide the groups of ciphertexts, and the parameters of their making."""
        return {"weights": list(self.groups), "terms": self.terms_json, "weighing": self.weighting.to_json()}

    def load_state(self, values: Mapping[str, Any], tensors: State) -> State:
        self.terms_json = dict(values["terms"])
        self.terms = read_terms(self.terms_json)
        plain = {name: value for name, value in tensors.items() if not name.startswith(f"{ENCRYPTED}:")}
        self._ciphertexts = {name: value for name, value in tensors.items() if name not in plain}
        for place, weight in enumerate(values["weights"]):
            group = self.groups[float(weight)] = self._adders()
            for part in self.parts:
                if part != SUMS:
                    group[part].add(self._ciphertexts[on_wire(part, place)])
        return plain

    def report(self) -> dict[str, Any]:
        return {"weight": self.weight, "groups": len(self.groups), "keys": self.keys.facts()}
