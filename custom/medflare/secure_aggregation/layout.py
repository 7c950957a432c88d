# SPDX-License-Identifier: Apache-2.0
"""Layout of an update's tensors in the two flat vectors that are masked or encrypted."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.tensors import SharedSpec, State, check_state


@dataclass(frozen=True)
class Segment:
    """Tensors one behind the other: their names, shapes and dtypes as declared, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, *specs: SharedSpec) -> Segment:
        """Return the specs one after the other, each in the order of its names."""
        rows = [(name, *spec[name]) for spec in specs for name in sorted(spec)]
        names = tuple(name for name, _, _ in rows)
        return cls(names, tuple(tuple(shape) for _, shape, _ in rows), tuple(dtype for *_, dtype in rows))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Values of each tensor."""
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Position of each tensor's first value, and behind the last tensor the number of all values."""
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def size(self) -> int:
        """Values of all tensors together."""
        return self.starts[-1]

    def name_at(self, position: int) -> str:
        """Return the tensor to which the value at a position belongs."""
        return self.names[bisect_right(self.starts, position) - 1]

    def joined(self, state: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the tensors as one new flat CPU vector."""
        out = torch.empty(self.size, dtype=dtype)
        for name, part in zip(self.names, out.split(list(self.sizes)), strict=True):
            part.copy_(state[name].detach().reshape(-1))
        return out

    def parted(self, flat: Tensor) -> State:
        """Return views of a flat vector in the tensors' shapes."""
        parts = flat.split(list(self.sizes))
        return {
            name: part.view(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }


@dataclass(frozen=True)
class Layout:
    """The order in which an update's values are written down; the same at every site and at the server.

    Attributes:
        narrow: floating tensors of the shared state, P values: weighted means that bear a 32-bit ring.
        wide: its integer tensors, then all declared sums, S values: need a 64-bit ring.
        weighted: how many of the S are weighted means (integer tensors of the state); the rest are sums.
    """

    narrow: Segment
    wide: Segment
    weighted: int

    @classmethod
    def of(cls, shared: SharedSpec, sums: SharedSpec) -> Layout:
        """Return the layout of an update; `sums` under the names they travel by.

        Raises ConfigError for names that stand in both, and for complex tensors.
        """
        twice = sorted(set(shared) & set(sums))
        odd = sorted(name for name, (_, dtype) in {**shared, **sums}.items() if dtype.is_complex)
        if twice:
            raise ConfigError(
                f"tensor '{twice[0]}' is declared as shared and as a sum; expected one of both."
            )
        if odd:
            raise ConfigError(f"tensor '{odd[0]}' is complex; expected floating or integer tensors.")
        floats = {name: spec for name, spec in shared.items() if spec[1].is_floating_point}
        integers = {name: spec for name, spec in shared.items() if name not in floats}
        return cls(Segment.of(floats), Segment.of(integers, sums), Segment.of(integers).size)

    @property
    def sums(self) -> int:
        """Values of the declared sums: what is in the wide segment and no weighted mean."""
        return self.wide.size - self.weighted

    @cached_property
    def spec(self) -> SharedSpec:
        """All tensors, shared and sums."""
        return {
            name: (shape, dtype)
            for part in (self.narrow, self.wide)
            for name, shape, dtype in zip(part.names, part.shapes, part.dtypes, strict=True)
        }

    @cached_property
    def digest(self) -> str:
        """sha256 over names, shapes, dtypes and their places, in hex."""
        rows = [
            [list(part.names), list(part.shapes), [str(dtype) for dtype in part.dtypes]]
            for part in (self.narrow, self.wide)
        ]
        return hashlib.sha256(json.dumps([rows, self.weighted]).encode()).hexdigest()

    def pack(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (fp32 [P], fp64 [S]) of an update's differences and sums, new vectors on the CPU.

        Raises UpdateError for unknown or missing names, other shapes, and values that are not finite.
        """
        check_state(tensors, self.spec, "update")
        return self.narrow.joined(tensors, torch.float32), self.wide.joined(tensors, torch.float64)

    def unpack(self, narrow: Tensor, wide: Tensor) -> State:
        """Return tensors from (P,) and (S,) vectors: views in the vectors' own dtypes, nothing is rounded.

        A mean of counters is no whole number before it is added to the old state, so that integer tensors
        and sums stay fp64. Raises ValueError for vectors of other lengths.
        """
        shapes, expected = (tuple(narrow.shape), tuple(wide.shape)), ((self.narrow.size,), (self.wide.size,))
        if shapes != expected:
            raise ValueError(f"vectors have shapes {shapes}; this layout expects {expected}.")
        return {**self.narrow.parted(narrow), **self.wide.parted(wide)}
