# SPDX-License-Identifier: Apache-2.0
"""A site's side of homomorphic encryption: it decrypts the state, trains, encrypts its weighted update."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.site_description import SiteDescription
from medflare.core.tensor_names import SUM_PREFIX, TOTAL_PREFIX, split_by_prefix, with_prefix
from medflare.core.tensors import SharedSpec, State
from medflare.federation.messages import FIT, Request
from medflare.federation.protections.base import SiteProtection, layout_of
from medflare.federation.protections.encrypted_parts import (
    ENCRYPTED,
    SUMS,
    joined,
    name_at,
    on_wire,
    parted,
    read_terms,
    sizes,
)
from medflare.federation.protections.weights import Weighing
from medflare.federation.server.persistor import FINAL, AdapterPersistor, Card
from medflare.secure_aggregation.encryption import decrypt, encrypt
from medflare.secure_aggregation.encryption_keys import Keys, read_site_context
from medflare.secure_aggregation.encryption_parameters import SITE_FILE
from medflare.secure_aggregation.encryption_schemes import Terms
from medflare.secure_aggregation.layout import Layout
from medflare.wire.task_messages import TaskResult


class EncryptedSite(SiteProtection):
    """All sites of a provision hold the same secret key (see docs/explanation/security.md)."""

    def __init__(self, site: str, startup: Path) -> None:
        self.site, self.keys = site, read_site_context(startup / SITE_FILE)
        self.layout: Layout | None = None
        self.dtypes: dict[str, torch.dtype] = {}

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        self.layout, self.describe = layout_of(shared, sums), dict(describe)
        self.dtypes = {name: dtype for name, (_, dtype) in shared.items()}

    def facts(self) -> dict[str, Any]:
        return self.keys.facts()

    def _layout(self) -> Layout:
        if self.layout is None:
            raise UpdateError("nothing was declared yet; a run starts with 'prepare'.")
        return self.layout

    def opened(self, request: Request) -> State:
        """θ_0 + Σ_g S_g / W_g, and the totals of the round before."""
        said = request.options.get(ENCRYPTED)
        if said is None:
            return request.tensors
        plain, sealed = split_by_prefix(request.tensors, f"{ENCRYPTED}:")
        layout, terms = self._layout(), read_terms(said["terms"])
        parts: dict[str, Tensor] = {}
        for name, message in sealed.items():
            part, _, group = name.partition(":")
            total = decrypt(self.keys, message, sizes(layout)[part], terms[part])
            found = total / said["weights"][int(group)] if group else total
            parts[part] = parts[part] + found if part in parts else found
        change, totals = split_by_prefix(joined(layout, parts), SUM_PREFIX)
        state = {name: _moved(value, change[name], self.dtypes[name]) for name, value in plain.items()}
        if SUMS in parts and request.task == FIT:
            state |= with_prefix(totals, TOTAL_PREFIX)
        return state

    def seal(self, request: Request, result: TaskResult) -> Ciphers | None:
        said = request.options[ENCRYPTED]
        weighing = Weighing(**said["weighing"])
        share = weighing.weight(result.facts) / weighing.most
        return Ciphers(self.keys, self._layout(), read_terms(said["terms"]), share)

    def export(self, request: Request, folder: Path) -> None:
        """The final adapter, here: the server cannot read it."""
        persistor = AdapterPersistor()
        persistor.expect(SiteDescription.model_validate(self.describe))
        persistor.write(folder / FINAL, self.opened(request), Card(**request.options["card"]))


class Ciphers:
    """Packs an update, weighs it and encrypts it."""

    name: Literal["he"] = "he"

    def __init__(self, keys: Keys, layout: Layout, terms: Mapping[str, Terms], share: float) -> None:
        self.keys, self.layout, self.terms, self.share = keys, layout, terms, share

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return dict(facts)

    def __call__(self, tensors: State) -> State:
        return {
            on_wire(part): encrypt(
                self.keys, vector, self.terms[part], name_at=partial(name_at, self.layout, part)
            )
            for part, vector in parted(self.layout, tensors, self.share).items()
        }


def _moved(old: Tensor, change: Tensor, kind: torch.dtype) -> Tensor:
    """Old values and what they changed by, in the declared dtype; counters to the nearest whole number."""
    new = old.double() + change
    return (new if kind.is_floating_point else new.round()).to(kind)
