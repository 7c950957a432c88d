# SPDX-License-Identifier: Apache-2.0
"""Shared parts of robust rules: they hold all updates of a round and compare them.

None of them can work on masked or encrypted updates: distances and order statistics need each in the clear.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.base import AggregationRule, RuleFacts, RuleSettings
from medflare.core.errors import ConfigError
from medflare.core.tensors import State, accumulator_dtype, apply_delta
from medflare.core.update import Update

BLOCK = 1 << 22
"""Values that are looked at together, of all sites: 32 MiB of float64, however many sites there are."""

_log = logging.getLogger(__name__)


def _blocks(updates: Sequence[State], name: str) -> Iterator[Tensor]:
    """Yield (sites, n) slices of one tensor in float64, of at most BLOCK values."""
    rows = [update[name].reshape(-1) for update in updates]
    step = max(BLOCK // len(rows), 1)
    for start in range(0, rows[0].numel(), step):
        block = torch.empty(len(rows), min(step, rows[0].numel() - start), dtype=torch.float64)
        for line, row in zip(block, rows, strict=True):
            line.copy_(row[start : start + step])
        yield block


def ordered(values: Tensor) -> Tensor:
    """Return (m, n) with each column sorted; numpy's sort is several times faster here than torch's."""
    return torch.from_numpy(np.sort(values.numpy(), axis=0))


def gram_matrix(updates: Sequence[State]) -> Tensor:
    """Return the (m, m) inner products in float64 over all floating tensors, block by block (VG-10).

    Each coordinate is centred on its median first: what updates have in common would drown their differences,
    and unlike a mean the median stays where it is beside one enormous update.
    """
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, value in updates[0].items():
        if value.is_floating_point():
            for block in _blocks(updates, name):
                centred = block - ordered(block)[(len(updates) - 1) // 2]
                total += centred @ centred.mT
    return (total + total.mT) / 2


def squared_distances(gram: Tensor) -> Tensor:
    """Return the (m, m) ‖Δ_i − Δ_j‖² from `gram_matrix`, exactly symmetric."""
    squares = gram.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).fill_diagonal_(0)


def coordinatewise(updates: Sequence[State], combine: Callable[[Tensor], Tensor]) -> State:
    """Return the state that `combine`, (m, n) -> (n), makes of every block of coordinates."""
    out: State = {}
    for name, value in updates[0].items():
        parts = [combine(block) for block in _blocks(updates, name)]
        flat = torch.cat(parts) if parts else torch.zeros(0)
        out[name] = flat.reshape(value.shape).to(accumulator_dtype(value))
    return out


def weighted(updates: Sequence[State], weights: Sequence[float]) -> State:
    """Return Σ w_k Δ_k; updates of weight 0 are left out, however large they are."""
    chosen = [(w, update) for w, update in zip(weights, updates, strict=True) if w != 0]
    rows = torch.tensor([w for w, _ in chosen], dtype=torch.float64)
    return coordinatewise([update for _, update in chosen], lambda block: rows @ block)


def robust_facts(summary: str, source: str) -> RuleFacts:
    """Return the facts that all robust rules share, with these words."""
    return RuleFacts(
        summary=summary,
        source=source,
        needs="individual",
        instead="rule 'weighted_mean', which a hostile site can mislead within the limits the sites set",
        streams=False,
        compares=True,
    )


class RobustRule(AggregationRule):
    """Collects a round's updates; `combine` makes one of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._report: dict[str, Any] = {}

    def begin(self, global_state: State) -> None:
        self._global, self._updates = global_state, dict[str, Update]()

    def add(self, site: str, update: Update) -> None:
        self._updates[site] = update

    def finish(self) -> State:
        if not self._updates:
            raise ValueError("no update was added in this round.")
        self._report = {}
        deltas = [{name: u.delta[name] for name in self._global} for u in self._updates.values()]
        new = apply_delta(self._global, self.combine(deltas))
        self._updates = {}
        return new

    @abstractmethod
    def combine(self, deltas: Sequence[State]) -> State:
        """Return one delta of the global state from the m sites' deltas, in order of `self._updates`."""

    def report(self) -> dict[str, Any]:
        return dict(self._report)

    def rank(self, scores: Tensor) -> list[int]:
        """Return positions from the lowest score; ties go to more examples, then to the name (VG-7)."""
        sites = list(self._updates)
        key = [(float(s), -self._updates[site].examples, site) for s, site in zip(scores, sites, strict=True)]
        return sorted(range(len(sites)), key=key.__getitem__)


class ByzantineRule(RobustRule):
    """A rule whose guarantee against f hostile sites needs a number of sites.

    Attributes:
        sites_per_f: (a, b): the guarantee needs a·f + b sites.
    """

    sites_per_f: ClassVar[tuple[int, int]] = (0, 1)

    class Settings(RuleSettings):
        f: int = Field(default=1, ge=0)
        """how many sites may send anything at all."""
        allow_unsafe: bool = False
        """go on with fewer sites than the guarantee needs, with a warning (VG-6); else a ConfigError ends the
        run."""

    settings: Settings

    @property
    def min_sites(self) -> int:
        """Accepted updates that the guarantee needs."""
        return self.sites_per_f[0] * self.settings.f + self.sites_per_f[1]

    def finish(self) -> State:
        """As `RobustRule.finish`.

        Raises:
            ConfigError: fewer updates than the guarantee needs, and `allow_unsafe` is not set.
        """
        sites = len(self._updates)
        if 0 < sites < self.min_sites:
            self._refuse_or_warn(sites)
        new = super().finish()
        self._report |= {"f": self.settings.f, "byzantine_guarantee": sites >= self.min_sites}
        return new

    def _refuse_or_warn(self, sites: int) -> None:
        needed, f = self.min_sites, self.settings.f
        problem = f"{type(self).__name__} with f = {f} needs {needed} accepted updates and has {sites}"
        if not self.settings.allow_unsafe:
            raise ConfigError(
                f"{problem}. Let more sites take part and set the controller's min_responses to {needed}, or "
                'set rule_settings: {"allow_unsafe": true} to go on without a Byzantine guarantee.'
            )
        _log.warning("%s: this round has no Byzantine guarantee.", problem)
