# SPDX-License-Identifier: Apache-2.0
"""The seal of an update: what masks or encrypts its tensors as the last step before they leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from medflare.core.tensors import State
from medflare.egress.failures import EgressError

MAX_SEALED = 3
"""Most vectors of a sealed message."""


class Seal(Protocol):
    """Masks or encrypts an update's tensors: they come out as a few packed vectors of other names."""

    @property
    def name(self) -> Literal["mask", "he"]:
        """As the policy's key `require` names it."""
        ...

    def __call__(self, tensors: State) -> State:
        """Return the sealed vectors."""
        ...

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that leave beside the sealed tensors."""
        ...


def apply_seal(seal: Seal, tensors: State) -> State:
    """Return the sealed tensors.

    Raises:
        EgressError: a tensor came out under its declared name, or as more vectors than a seal makes: a seal
            that does nothing must never pass for one.
    """
    out = seal(tensors)
    unsealed = sorted(set(out) & set(tensors))
    if unsealed or not 1 <= len(out) <= MAX_SEALED:
        raise EgressError(
            f"the seal '{seal.name}' gave {len(out)} tensors, {len(unsealed)} of them under a declared "
            f"name; expected one to {MAX_SEALED} packed vectors."
        )
    return out
