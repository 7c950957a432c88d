# SPDX-License-Identifier: Apache-2.0
"""DRFA at a site: the model after a random step that all sites share (Deng et al. 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.learners.client_terms.base import ClientTerm, Shared, TermOutput

SNAPSHOT, DRAWN = "snapshot.", "drawn"


class Snapshot(ClientTerm):
    """Sums: d_k (θ_k after step t' − θ_r) for every shared tensor, and d_k, how often the site was drawn.

    The step is named as a share u of the round, t' = ⌈u τ_k⌉: where sites take equally many steps it is the
    same step, and where they pass over data of unequal size it is the same share of them. A site that took
    no step, because it has nothing to train on in this exchange, was drawn for nothing: its d_k is 0.
    """

    @staticmethod
    def is_requested(hints: RoundHints) -> bool:
        return hints.snapshot is not None

    def sums_spec(self, shared: Shared) -> SharedSpec:
        spec: SharedSpec = {SNAPSHOT + n: (tuple(t.shape), torch.float32) for n, t in shared.items()}
        return spec | {DRAWN: ((), torch.float32)}

    def begin(self, site: str, shared: Shared, plan: RoundPlan) -> None:
        hint = plan.hints.snapshot
        assert hint is not None
        self._share, self._drawn = hint.share, float(hint.drawn.get(site, 1))
        self._shared = shared
        self._start = _cpu_copies(shared)
        self._taken: State | None = None
        self._steps = 0

    def after_step(self, done: int, steps: int) -> None:
        self._steps = done
        if done == max(math.ceil(self._share * steps), 1):
            self._taken = self._change()

    def _change(self) -> State:
        return {name: now - self._start[name] for name, now in _cpu_copies(self._shared).items()}

    def finish(self) -> TermOutput:
        change = self._change() if self._taken is None else self._taken
        drawn = self._drawn if self._steps else 0.0
        sums = {SNAPSHOT + name: value * drawn for name, value in change.items()}
        self._start, self._taken = {}, None
        return TermOutput(sums=sums | {DRAWN: torch.tensor(drawn)}, factor=self._drawn)


def _cpu_copies(shared: Shared) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in shared.items()}
