# SPDX-License-Identifier: Apache-2.0
"""What the image encoder makes of visits: computed once where it is frozen, anew where it learns (TAR-7)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from medflare.data.images import augment, centre
from medflare.data.visit_samples import VisitSamples
from medflare.models.longitudinal_generator import LongitudinalGenerator


class Pictures(Protocol):
    """Where a learner has its patch tokens from."""

    def patches(self, rows: Sequence[int], turned: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """(B, m, S, C) of up to m pictures a visit, and (B, m) bool, true where there is one.

        turned: draws crops and rotations in training; None for the middle of each picture.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """For the record: what is kept, and what it took."""
        ...


class KeptPatches:
    """Tokens of a frozen encoder, of every picture of `rows`, on the CPU in the dtype they came in.

    Memory is pictures times S times C times 2 or 4 bytes, told in `facts`.
    """

    def __init__(
        self, samples: VisitSamples, model: LongitudinalGenerator, rows: Sequence[int], batch: int
    ) -> None:
        started = time.monotonic()
        self.samples = samples
        used = sorted({position for row in rows for position in samples.pictures[row]})
        self._places = {position: place for place, position in enumerate(used)}
        self._tokens = torch.cat([*_encoded(samples, model, used, batch), _nothing(model)])
        self.seconds = time.monotonic() - started

    def patches(self, rows: Sequence[int], turned: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """As in `Pictures`; nothing is turned, as no picture is looked at again."""
        places, there = _laid_out([[self._places[p] for p in self.samples.pictures[row]] for row in rows])
        return self._tokens[places], there

    def facts(self) -> dict[str, Any]:
        found = {"pictures": len(self._places), "bytes": self._tokens.nbytes}
        return found | {"dtype": str(self._tokens.dtype).removeprefix("torch."), "seconds": self.seconds}


class FreshPatches:
    """Tokens of an encoder that learns, with gradients."""

    def __init__(self, samples: VisitSamples, model: LongitudinalGenerator, rotation: float) -> None:
        self.samples, self.model, self.rotation = samples, model, rotation

    def patches(self, rows: Sequence[int], turned: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        images, there = self.samples.images(rows)
        size, flat = self.model.settings.encoder.image_size, images.flatten(0, 1)
        seen = centre(flat, size) if turned is None else augment(flat, size, self.rotation, turned)
        tokens, _ = self.model.encode(seen.to(self.model.device))
        return tokens.unflatten(0, tuple(there.shape)), there

    def facts(self) -> dict[str, Any]:
        return {}


@torch.no_grad()
def _encoded(
    samples: VisitSamples, model: LongitudinalGenerator, positions: Sequence[int], batch: int
) -> Iterator[Tensor]:
    size = model.settings.encoder.image_size
    with model.evaluating():
        for start in range(0, len(positions), batch):
            stored = samples.store.batch(list(positions[start : start + batch]))
            yield model.encode(centre(stored, size).to(model.device))[0].cpu()


def _nothing(model: LongitudinalGenerator) -> Tensor:
    """No picture at all, and the shape of one, for a site without visits."""
    return torch.zeros(0, model.encoder.tokens, model.encoder.width)


def _laid_out(places: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows of places made equally long with the first place, and which of them are meant."""
    most = max(len(own) for own in places)
    found = torch.tensor([own + [own[0]] * (most - len(own)) for own in places])
    lengths = torch.tensor([len(own) for own in places])
    return found, torch.arange(most) < lengths[:, None]
