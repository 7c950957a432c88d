# SPDX-License-Identifier: Apache-2.0
"""The sketch of a knowledge graph as it leaves a site (DD-3); `knowledge.sketches` compares sketches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from medflare.core.errors import UpdateError

SketchKind = Literal["set", "weighted"]
SKETCH_KINDS: tuple[SketchKind, ...] = ("set", "weighted")
_MAGIC = b"MFS1"
_HEADER = len(_MAGIC) + 2 + 4 + 16


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A graph as a server receives it.

    Attributes:
        values: (k) uint32, equal in two sketches with the probability that is the Jaccard similarity.
        fingerprint: 16 bytes; only sketches with the same one can be compared.
        kind: "set", or "weighted" by confidences.
        empty: the graph held no triple; values say nothing then.
    """

    values: np.ndarray
    fingerprint: bytes
    kind: SketchKind = "set"
    empty: bool = False

    def to_bytes(self) -> bytes:
        """Return the sketch as bytes: 4 k and a header of 26, whatever the size of the graph."""
        flags = bytes((SKETCH_KINDS.index(self.kind), int(self.empty)))
        k = len(self.values).to_bytes(4, "little")
        return _MAGIC + flags + k + self.fingerprint + self.values.astype("<u4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, site: str) -> Sketch:
        """Return the sketch that a site sent; UpdateError names the site whose bytes are none."""
        k = int.from_bytes(data[6:10], "little") if len(data) >= _HEADER else 0
        valid = data[:4] == _MAGIC and k > 0 and len(data) == _HEADER + 4 * k
        if not valid or data[4] >= len(SKETCH_KINDS) or data[5] > 1:
            raise UpdateError(
                f"site '{site}' sent {len(data)} bytes that are no sketch of this version; expected a header "
                f"of {_HEADER} bytes and 4 for each hash. Have the site run the same version of medflare."
            )
        values = np.frombuffer(data, "<u4", offset=_HEADER).astype(np.uint32)
        return cls(values, data[10:_HEADER], SKETCH_KINDS[data[4]], bool(data[5]))
