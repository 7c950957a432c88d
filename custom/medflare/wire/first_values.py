# SPDX-License-Identifier: Apache-2.0
"""Statements of a site about its shared tensors before round 1: of each a digest and a norm.

Sites make these values from public weights, the job's settings and the run's seed, so most of them make the
same; the server compares what all of them say and owes nothing to the one whose tensors it takes
(`federation.server.first_values`). The digest is of the values as they travel: in bf16, what two processors
round differently in the last bits of fp32 is nearly always the same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from medflare.core.tensors import squares
from medflare.wire.compression import Uplink, compress, initial_codec
from medflare.wire.digest import state_digest

FACT = "first_values"
"""The fact of a reply to 'prepare' that holds them: name -> `sha256` and `norm`."""
SHA256, NORM = FIELDS = ("sha256", "norm")


def tensor_digest(name: str, value: Tensor) -> str:
    """Return the sha256 over name, dtype, shape and values of one tensor as it travels."""
    return state_digest({name: value})


def tensor_norm(value: Tensor) -> float:
    """Return the Euclidean norm of all values, in float64."""
    return math.sqrt(squares(value))


def describe_values(state: Mapping[str, Tensor], uplink: Uplink) -> dict[str, dict[str, str | float]]:
    """Return name -> digest and norm of each tensor, as it would travel before round 1.

    One tensor is compressed at a time, so no second model is in memory.
    """
    out: dict[str, dict[str, str | float]] = {}
    for name, value in state.items():
        (travels,) = compress({name: value}, initial_codec(uplink)).values()
        out[name] = {SHA256: tensor_digest(name, travels), NORM: tensor_norm(travels)}
    return out
