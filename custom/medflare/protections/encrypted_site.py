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
from medflare.models.peft_folder import FINAL, Card, PeftFolder
from medflare.protections.base import SiteProtection, layout_of
from medflare.protections.encrypted_parts import (
    ENCRYPTED,
    SUMS,
    join_parts,
    name_at,
    on_wire,
    read_terms,
    sizes,
    split_parts,
)
from medflare.protections.weighting import UpdateWeighting
from medflare.protocol.messages import FINISH, FIT, Request
from medflare.secure_aggregation.encryption import decrypt, encrypt
from medflare.secure_aggregation.encryption_keys import Keys, read_site_context
from medflare.secure_aggregation.encryption_parameters import SITE_FILE
from medflare.secure_aggregation.encryption_schemes import HeParameters
from medflare.secure_aggregation.layout import Layout
from medflare.wire.task_messages import TaskResult


class EncryptedSite(SiteProtection):
    """All sites of a provision hold the same secret key (see docs/explanation/homomorphic_encryption.md)."""

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

    def readable_tensors(self, request: Request) -> State:
        """Return θ_0 + Σ_g S_g / W_g, and the totals of the round before."""
        message = request.options.get(ENCRYPTED)
        if message is None:
            return request.tensors
        plain, ciphertexts = split_by_prefix(request.tensors, f"{ENCRYPTED}:")
        layout, terms = self._layout(), read_terms(message["terms"])
        parts: dict[str, Tensor] = {}
        for name, ciphertext in ciphertexts.items():
            part, _, group = name.partition(":")
            total = decrypt(self.keys, ciphertext, sizes(layout)[part], terms[part])
            value = total / message["weights"][int(group)] if group else total
            parts[part] = parts[part] + value if part in parts else value
        change, totals = split_by_prefix(join_parts(layout, parts), SUM_PREFIX)
        state = {name: _apply_change(value, change[name], self.dtypes[name]) for name, value in plain.items()}
        if SUMS in parts and request.task == FIT:
            state |= with_prefix(totals, TOTAL_PREFIX)
        return state

    def check_measuring(self, request: Request) -> None:
        """Refuse to measure for a server that could read no sum of it; the final test is for the site itself.

        Raises:
            UpdateError: it is no final test.
        """
        if request.task != FINISH:
            raise UpdateError(
                "under homomorphic encryption nobody but the sites could read the sum of what they measure, "
                "and numbers of one site stay there. Only the final test is made, and kept at the site."
            )

    def seal(self, request: Request, result: TaskResult) -> Ciphers | None:
        if request.task != FIT:
            return None
        message = request.options[ENCRYPTED]
        weighting = UpdateWeighting.from_json(message["weighing"])
        share = weighting.weight(result.facts) / weighting.max_weight
        return Ciphers(self.keys, self._layout(), read_terms(message["terms"]), share)

    def export(self, request: Request, folder: Path) -> None:
        """Write the final adapter here: the server cannot read it."""
        writer = PeftFolder()
        writer.expect(SiteDescription.model_validate(self.describe))
        writer.write(folder / FINAL, self.readable_tensors(request), Card(**request.options["card"]))


class Ciphers:
    """Pack an update, weigh it and encrypt it."""

    name: Literal["he"] = "he"

    def __init__(self, keys: Keys, layout: Layout, terms: Mapping[str, HeParameters], share: float) -> None:
        self.keys, self.layout, self.terms, self.share = keys, layout, terms, share

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return dict(facts)

    def __call__(self, tensors: State) -> State:
        return {
            on_wire(part): encrypt(
                self.keys, vector, self.terms[part], name_at=partial(name_at, self.layout, part)
            )
            for part, vector in split_parts(self.layout, tensors, self.share).items()
        }


def _apply_change(old: Tensor, change: Tensor, dtype: torch.dtype) -> Tensor:
    """Add a change to old values, in the declared dtype; counters are rounded to the nearest integer."""
    new = old.double() + change
    return (new if dtype.is_floating_point else new.round()).to(dtype)
