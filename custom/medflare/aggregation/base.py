# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: a pure accumulator of updates (design.md 3, algorithms.md 1.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from medflare.learners.base import State, Update


class AggregationRule(ABC):
    """begin, add for each accepted update, finish; memory independent of the number of sites where it can be.

    `needs` says whether the rule works on a weighted sum alone ("sum": can be masked or encrypted) or must
    see each update in the clear ("individual").
    """

    needs: Literal["sum", "individual"] = "sum"

    @abstractmethod
    def begin(self, global_state: State) -> None:
        """Starts a round from the state that was broadcast."""

    @abstractmethod
    def add(self, site: str, update: Update) -> None:
        """Takes one accepted update."""

    @abstractmethod
    def finish(self) -> State:
        """The new global state, in the dtypes of the old one; raises ValueError if nothing was added."""

    def state_dict(self) -> dict[str, Any]:
        """What a server optimiser must keep between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most rules keep nothing
        """Puts back what `state_dict` returned."""
