# SPDX-License-Identifier: Apache-2.0
"""Limits on one site's update: its norms against the other sites', its share of the weight.

A check of names, shapes and finite values lets an update of 1e30 or a claim of a billion examples through,
and either makes the sum that one site's alone. The limits here are loose on purpose: they stop a site from
replacing the model in one round. A site that stays below them can still do harm, which robust rules bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from medflare.core.tensors import State, squares
from medflare.core.update import Update

MAX_STATE_RATIO = 1e3
"""An update's norm against the state's. With two sites there is no majority whose norms could decide."""


def state_norm(state: State) -> float:
    """Return the Euclidean norm of all floating tensors."""
    return math.sqrt(sum(squares(value) for value in state.values() if value.is_floating_point()))


@dataclass(slots=True, kw_only=True)
class NormLimit:
    """The largest norm of what one site sends in one round.

    Attributes:
        what: its name in reasons.
        max_ratio: to the median over sites; None for no limit.
        keeps_largest: whether the largest norm of a site is remembered in place of its last one. Changes of
            control variates go to zero, and a site that joins late begins with a whole one.
        latest: site -> that norm of what was accepted; one each, so that no site speaks for others.
        current: site -> norm of what it sent in this round, accepted or not.
        state: norm of the state that the round began with.
    """

    what: str = "update"
    max_ratio: float | None = 100.0
    keeps_largest: bool = False
    latest: dict[str, float] = field(default_factory=dict)
    current: dict[str, float] = field(default_factory=dict)
    state: float = 0.0

    def begin(self, state: State) -> None:
        """Start a round from the server's state."""
        self.current, self.state = {}, state_norm(state)

    def problem(self, site: str, values: State, examples: int = 1) -> str | None:
        """Return why what a site sent can be used in no case: it is out of all proportion to the state.

        Args:
            examples: n, where `values` may grow with the examples. Some of them do and some do not, so that
                norms are compared over √n: sites may differ ten thousandfold in n, and none is too large.
        """
        root = math.sqrt(max(1, examples))
        norm = self.current[site] = state_norm(values) / root
        most = MAX_STATE_RATIO * max(1.0, self.state) * root
        if self.max_ratio is None or norm <= most:
            return None
        return (
            f"{self.what}: norm {norm:.3g}, more than {MAX_STATE_RATIO * root:g} times the model's own "
            f"({self.state:.3g})"
        )

    def is_unusual(self, site: str) -> bool:
        """Return whether an update must wait for the others of its round before it can be judged.

        Past rounds decide at once where they can. All sites of the first round wait, and so does an update
        far above the past: if most others are, then training has changed and not the site.
        """
        return self.max_ratio is not None and not self._within(site, self.latest)

    def refused(self, site: str) -> str | None:
        """Return why an unusual update is refused, once all updates of the round are known."""
        if self._within(site, self.current) or self._within(site, self.latest):
            return None
        median = statistics.median(value for value in self.current.values() if value > 0)
        return (
            f"{self.what}: norm {self.current[site]:.3g}, more than {self.max_ratio:g} times this round's "
            f"median {median:.3g} (setting max_norm_ratio)"
        )

    def accept(self, site: str) -> None:
        """Remember the norm of what went to the rule."""
        before = self.latest.get(site, 0.0) if self.keeps_largest else 0.0
        self.latest[site] = max(self.current[site], before)

    def _within(self, site: str, norms: Mapping[str, float]) -> bool:
        """Return whether a site's norm is within the ratio of the median of `norms`, zeros left out."""
        positive = [value for value in norms.values() if value > 0]
        if not self.current[site]:
            return True
        assert self.max_ratio is not None
        return bool(positive) and self.current[site] <= self.max_ratio * statistics.median(positive)


class UpdateLimits:
    """The limits on both parts of an update: the change of the state, and the sums beside it.

    One site's enormous sum would spoil what all sites receive next, a control variate for instance, and would
    stay in the totals; so sums are held against the other sites' as changes are.

    Args:
        assigned: names of sums that the server assigned to each site, which are held against nothing.

    Attributes:
        change, sums: the limit of each part.
    """

    def __init__(self, max_ratio: float | None = 100.0, assigned: Collection[str] = ()) -> None:
        self.assigned = frozenset(assigned)
        self.change = NormLimit(max_ratio=max_ratio)
        self.sums = NormLimit(what="sums", max_ratio=max_ratio, keeps_largest=True)
        self._parts = (self.change, self.sums)

    def begin(self, state: State) -> None:
        """Start a round from the server's state."""
        for part in self._parts:
            part.begin(state)

    def problem(self, site: str, update: Update, examples: int) -> str | None:
        """Return why an update can be used in no case. examples: with which the site counts in the run."""
        sums = {name: value for name, value in update.sums.items() if name not in self.assigned}
        return self.change.problem(site, update.delta) or self.sums.problem(site, sums, examples)

    def is_unusual(self, site: str) -> bool:
        """Return whether an update must wait for the others of its round before it can be judged."""
        return any(part.is_unusual(site) for part in self._parts)

    def refused(self, site: str) -> str | None:
        """Return why an unusual update is refused, once all updates of the round are known."""
        return next(filter(None, (part.refused(site) for part in self._parts)), None)

    def accept(self, site: str) -> None:
        """Remember the norms of an update that went to the rule."""
        for part in self._parts:
            part.accept(site)


def limited_weights(examples: Mapping[str, int], max_share: float) -> dict[str, int]:
    """Return the training examples with which each site counts.

    Args:
        examples: site -> how many it declared, which nobody can check.
        max_share: of the weight of all sites that one site may have; 1 for no limit.

    Returns:
        site -> count; below the declared one where that would be more than `max_share` of the total.
    """
    if max_share >= 1 or len(examples) < 2:
        return dict(examples)
    total = sum(examples.values())
    out = {}
    for site, count in examples.items():
        others = total - count
        most = max(1, math.floor(others * max_share / (1 - max_share) + 1e-9))
        out[site] = min(count, most) if others else count
    return out
