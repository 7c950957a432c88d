# SPDX-License-Identifier: Apache-2.0
"""The reports that one site has trained on last, as features of momentum networks; they never leave."""

from __future__ import annotations

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code

NOBODY = -1
"""Patient of a place that no report has taken yet."""


class ReportQueue:
    """A ring of the last reports.

    Attributes:
        images, texts: (size, width) unit features by the momentum networks.
        codes: (size, 14) what each report states. patients: (size,) numbers of this site's patients.
        place: where the next report goes; filled: places that hold one.
    """

    def __init__(self, size: int, width: int) -> None:
        self.images, self.texts = torch.zeros(size, width), torch.zeros(size, width)
        self.codes = torch.full((size, len(CONDITIONS)), int(Code.BLANK))
        self.patients = torch.full((size,), NOBODY)
        self.place = 0

    @property
    def filled(self) -> Tensor:
        """(size,) bool."""
        return self.patients != NOBODY

    def add(self, images: Tensor, texts: Tensor, codes: Tensor, patients: Tensor) -> None:
        """Take a batch in place of the oldest reports; the last ones of a batch larger than the ring."""
        size = len(self.patients)
        for ring, rows in (
            (self.images, images),
            (self.texts, texts),
            (self.codes, codes),
            (self.patients, patients),
        ):
            rows = rows.detach().cpu()[-size:]
            places = (self.place + torch.arange(len(rows))) % size
            ring[places] = rows.to(ring.dtype)
        self.place = (self.place + min(len(patients), size)) % size

    def find(self, features: Tensor, count: int, patients: Tensor | None = None) -> Tensor:
        """Return the codes of the reports whose features are most like an image's, (B, k, 14).

        Args:
            features: (B, width) of unit norm. count: k, where the ring holds as many.
            patients: (B,) whose own reports are left out, else the report to write would be among those that
                help to write it (BL-15).

        Returns:
            all blank where fewer than k reports of others were there.
        """
        kept = self.filled.to(features.device)[None].expand(len(features), -1)  # (B, size)
        if patients is not None:
            same = patients.to(features.device)[:, None] == self.patients.to(features.device)[None]
            kept = kept & ~same
        similar = features.detach() @ self.texts.to(features.device).T  # (B, size)
        best = similar.masked_fill(~kept, float("-inf")).topk(min(count, similar.shape[1]), 1)
        found = self.codes.to(features.device)[best.indices]  # (B, k, 14)
        return torch.where(torch.isfinite(best.values)[..., None], found, int(Code.BLANK))

    def state(self) -> dict[str, Tensor]:
        """Return copies of what must survive a restart."""
        kept = {"images": self.images, "texts": self.texts, "codes": self.codes, "patients": self.patients}
        return {name: tensor.clone() for name, tensor in kept.items()} | {"place": torch.tensor([self.place])}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned."""
        self.images, self.texts = state["images"].clone(), state["texts"].clone()
        self.codes, self.patients = state["codes"].clone(), state["patients"].clone()
        self.place = int(state["place"])
