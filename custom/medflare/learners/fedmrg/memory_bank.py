# SPDX-License-Identifier: Apache-2.0
"""Negatives from elsewhere for the contrastive loss (FedMRG section III-B.1; MRG-3, MRG-4).

off: none. local_queue: this site's own recent features, nothing leaves. prototypes: class-wise sums and
counts over at least `k_min` images, secure-summable. raw: feature rows in the clear, as in the paper.
A site always removes its own contribution before use: the bank is "derived from other clients".
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import PROTOTYPES, RAW
from medflare.core.tensors import SharedSpec, State

BankMode = Literal["off", "local_queue", "prototypes", "raw"]
SUM, COUNT, ROWS = PROTOTYPES + "bank.sum", PROTOTYPES + "bank.count", RAW + "bank.rows"
"""Names of what leaves, by which a site's policy knows that it holds features."""
CELLS = 2 * len(CONDITIONS)
"""Prototype cells: each condition positive, then each condition negative."""


class MemoryBank:
    """One site's side of the bank: `rows()` to contrast with, `contribution()` to send."""

    def __init__(self, mode: BankMode, width: int, rows: int, k_min: int) -> None:
        self.mode, self.width, self.size, self.k_min = mode, width, rows, k_min
        self.sent: State = {}
        self._rows = torch.zeros(0, width)

    def sums_spec(self, sites: int) -> SharedSpec:
        """Return the declared auxiliary sums of this mode."""
        if self.mode == "prototypes":
            return {
                SUM: ((CELLS, self.width), torch.float32),
                COUNT: ((CELLS,), torch.float32),
            }
        if self.mode == "raw":
            return {ROWS: ((sites, self.size, self.width), torch.float32)}
        return {}

    def receive(self, plan: RoundPlan) -> None:
        """Turn last round's totals into rows of other sites only.

        A site whose update was late or rejected is not in the totals (`hints.summed` lists who is), so it
        has nothing to take out of them.
        """
        if self.mode == "prototypes" and SUM in plan.totals:
            sent = self.sent if plan.hints.site_index in plan.hints.summed else {}
            total = plan.totals[SUM].float() - sent.get(SUM, torch.zeros(CELLS, self.width))
            count = plan.totals[COUNT].float() - sent.get(COUNT, torch.zeros(CELLS))
            kept = count >= self.k_min
            self._rows = F.normalize(total[kept] / count[kept, None], dim=1)
        elif self.mode == "raw" and ROWS in plan.totals:
            rows = plan.totals[ROWS].float()
            others = [i for i in range(len(rows)) if i != plan.hints.site_index]
            flat = rows[others].flatten(0, 1)
            # Unit rows again: whoever sends long ones would decide what everybody's images move away from.
            self._rows = F.normalize(flat[flat.norm(dim=1) > 0.5], dim=1)

    def rows(self) -> Tensor:
        """Return (K, C) unit rows to contrast with; K may be 0."""
        return self._rows

    def remember(self, features: Tensor) -> None:
        """Queue this batch's features (N, C), unit rows, where the mode is `local_queue`."""
        if self.mode == "local_queue":
            self._rows = torch.cat([features.detach().float().cpu(), self._rows])[: self.size]

    def contribution(self, features: Tensor, codes: Tensor, plan: RoundPlan) -> State:
        """Return what this site sends.

        Args:
            features: (n, C) unit rows of training images.
            codes: (n, 14) of `Code`.
        """
        if self.mode == "prototypes":
            member = torch.cat([codes == Code.POSITIVE, codes == Code.NEGATIVE], 1).float()
            count = member.sum(0)
            enough = count >= self.k_min
            total = (member.T @ features) * enough[:, None]
            self.sent = {SUM: total, COUNT: count * enough}
        elif self.mode == "raw":
            sites, index = plan.hints.sites, plan.hints.site_index
            assert sites is not None, "a federation names the number of sites"
            rows = torch.zeros(sites, self.size, self.width)
            rows[index, : len(features)] = features[: self.size]
            self.sent = {ROWS: rows}
        return dict(self.sent)

    def state(self) -> State:
        """Return what must survive a restart."""
        return {"bank.local": self._rows} | {f"bank.own.{name}": value for name, value in self.sent.items()}

    def restore(self, tensors: State) -> None:
        """Put back what `state` returned."""
        self._rows = tensors.get("bank.local", self._rows)
        self.sent = {n[len("bank.own.") :]: v for n, v in tensors.items() if n.startswith("bank.own.")}
