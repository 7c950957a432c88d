# SPDX-License-Identifier: Apache-2.0
"""Patch tokens of visits: computed once where the image encoder is frozen, anew where it learns (TAR-7)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from medflare.data.images import augment, centre
from medflare.data.visit_samples import VisitSamples
from medflare.models.longitudinal_generator import LongitudinalGenerator


class PatchSource(Protocol):
    """Gives a learner the patch tokens of its visits."""

    def patches(self, rows: Sequence[int], generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return (B, m, S, C) of up to m images a visit, and (B, m) bool, true where there is one.

        generator: draws crops and rotations in training; None for the middle of each image.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Return what is kept, and what it took, for the record."""
        ...


class CachedPatches:
    """Tokens of a frozen encoder, of every image of `rows`, on the CPU in the dtype they came in.

    Memory is images times S times C times 2 or 4 bytes; `facts` has it.
    """

    def __init__(
        self, samples: VisitSamples, model: LongitudinalGenerator, rows: Sequence[int], batch: int
    ) -> None:
        started = time.monotonic()
        self.samples = samples
        used = sorted({position for row in rows for position in samples.pictures[row]})
        self._places = {position: place for place, position in enumerate(used)}
        self._tokens = torch.cat([*_encoded(samples, model, used, batch), _no_tokens(model)])
        self.seconds = time.monotonic() - started

    def patches(self, rows: Sequence[int], generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """As in `PatchSource`; nothing is augmented, as no image is encoded again."""
        places, present = _padded([[self._places[p] for p in self.samples.pictures[row]] for row in rows])
        return self._tokens[places], present

    def facts(self) -> dict[str, Any]:
        facts = {"pictures": len(self._places), "bytes": self._tokens.nbytes}
        return facts | {"dtype": str(self._tokens.dtype).removeprefix("torch."), "seconds": self.seconds}


class ComputedPatches:
    """Tokens of an encoder that learns, with gradients."""

    def __init__(self, samples: VisitSamples, model: LongitudinalGenerator, rotation: float) -> None:
        self.samples, self.model, self.rotation = samples, model, rotation

    def patches(self, rows: Sequence[int], generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        images, present = self.samples.images(rows)
        size, flat = self.model.settings.encoder.image_size, images.flatten(0, 1)
        views = centre(flat, size) if generator is None else augment(flat, size, self.rotation, generator)
        tokens, _ = self.model.encode(views.to(self.model.device))
        return tokens.unflatten(0, tuple(present.shape)), present

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


def _no_tokens(model: LongitudinalGenerator) -> Tensor:
    """Return no token at all in the shape of an image's, for a site without visits."""
    return torch.zeros(0, model.encoder.tokens, model.encoder.width)


def _padded(places: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return rows of places padded with the first place of each, and which entries are no padding."""
    most = max(len(row) for row in places)
    padded = torch.tensor([row + [row[0]] * (most - len(row)) for row in places])  # (B, m)
    lengths = torch.tensor([len(row) for row in places])
    return padded, torch.arange(most) < lengths[:, None]
