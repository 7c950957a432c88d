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
from medflare.core.tensors import SharedSpec, State

BankMode = Literal["off", "local_queue", "prototypes", "raw"]
CELLS = 2 * len(CONDITIONS)
"""Prototype cells: each condition positive, then each condition negative."""


class MemoryBank:
    """One site's side of the bank: `rows()` to contrast with, `contribution()` to send."""

    def __init__(self, mode: BankMode, width: int, rows: int, k_min: int) -> None:
        self.mode, self.width, self.size, self.k_min = mode, width, rows, k_min
        self.own: State = {}
        self._rows = torch.zeros(0, width)

    def sums_spec(self, sites: int) -> SharedSpec:
        """Declared auxiliary sums of this mode."""
        if self.mode == "prototypes":
            return {
                "bank.sum": ((CELLS, self.width), torch.float32),
                "bank.count": ((CELLS,), torch.float32),
            }
        if self.mode == "raw":
            return {"bank.rows": ((sites, self.size, self.width), torch.float32)}
        return {}

    def receive(self, plan: RoundPlan) -> None:
        """Turns last round's totals into rows of other sites only.

        A site whose update was late or rejected is not in the totals (`hints.summed` lists who is), so it
        has nothing to take out of them.
        """
        if self.mode == "prototypes" and "bank.sum" in plan.totals:
            own = self.own if plan.hints.site_index in plan.hints.summed else {}
            total = plan.totals["bank.sum"].float() - own.get("bank.sum", torch.zeros(CELLS, self.width))
            count = plan.totals["bank.count"].float() - own.get("bank.count", torch.zeros(CELLS))
            kept = count >= self.k_min
            self._rows = F.normalize(total[kept] / count[kept, None], dim=1)
        elif self.mode == "raw" and "bank.rows" in plan.totals:
            rows = plan.totals["bank.rows"].float()
            others = [i for i in range(len(rows)) if i != plan.hints.site_index]
            flat = rows[others].flatten(0, 1)
            self._rows = flat[flat.norm(dim=1) > 0.5]

    def rows(self) -> Tensor:
        """(K, C) unit rows to contrast with; K may be 0."""
        return self._rows

    def remember(self, features: Tensor) -> None:
        """Queues this batch's features where the mode is `local_queue`. features: (N, C) unit rows."""
        if self.mode == "local_queue":
            self._rows = torch.cat([features.detach().float().cpu(), self._rows])[: self.size]

    def contribution(self, features: Tensor, codes: Tensor, plan: RoundPlan) -> State:
        """What this site sends. features: (n, C) unit rows of training images; codes: (n, 14)."""
        if self.mode == "prototypes":
            member = torch.cat([codes == Code.POSITIVE, codes == Code.NEGATIVE], 1).float()
            count = member.sum(0)
            enough = count >= self.k_min
            total = (member.T @ features) * enough[:, None]
            self.own = {"bank.sum": total, "bank.count": count * enough}
        elif self.mode == "raw":
            sites, index = plan.hints.sites, plan.hints.site_index
            assert sites is not None, "a federation names the number of sites"
            rows = torch.zeros(sites, self.size, self.width)
            rows[index, : len(features)] = features[: self.size]
            self.own = {"bank.rows": rows}
        return dict(self.own)

    def state(self) -> State:
        """What must survive a restart."""
        return {"bank.local": self._rows} | {f"bank.own.{name}": value for name, value in self.own.items()}

    def restore(self, tensors: State) -> None:
        """Puts back what `state` returned."""
        self._rows = tensors.get("bank.local", self._rows)
        self.own = {n[len("bank.own.") :]: v for n, v in tensors.items() if n.startswith("bank.own.")}
