# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: a pure accumulator of updates (design.md 3, algorithms.md 1.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from medflare.core.tensors import State
from medflare.core.update import Update

C = TypeVar("C")


class AggregationRule(ABC):
    """begin, add for each accepted update, finish; memory independent of the number of sites where it can be.

    Attributes:
        needs: whether the rule works on a weighted sum alone ("sum": can be masked or encrypted) or must see
            each update in the clear ("individual").
        sum_with: settings with which a rule that otherwise needs individual updates needs a sum alone.
        instead: what to use where the server may see a sum only; of a rule that needs individual updates.
        streams: whether memory is independent of the number of sites.
        reads_sum: whether the server must read the sum to go on, where encryption leaves it unread.
        compares: whether updates of different sites are held against each other.
        sharing: the modes of sharing LoRA factors the rule can work with; empty for all but `stack`.
        stack_with: settings with which a rule works on LoRA pairs that are stacked, where others do not.
        summary: what the rule does, in one sentence for listings.
        source: paper, section of algorithms.md, resolution ids.
        outside_spec: prefixes of tensors that the rule may add to the state beside the shared ones.
    """

    needs: Literal["sum", "individual"] = "sum"
    sum_with: Mapping[str, Any] = MappingProxyType({})
    instead: str = ""
    streams: bool = True
    reads_sum: bool = False
    compares: bool = False
    sharing: tuple[str, ...] = ()
    stack_with: Mapping[str, Any] = MappingProxyType({})
    summary: str = ""
    source: str = ""
    outside_spec: tuple[str, ...] = ()

    @abstractmethod
    def begin(self, global_state: State) -> None:
        """Starts a round from the state that was broadcast; ConfigError if the rule cannot work on it."""

    @abstractmethod
    def add(self, site: str, update: Update) -> None:
        """Takes one accepted update; an UpdateError costs that site its round and nothing else."""

    @abstractmethod
    def finish(self) -> State:
        """The new global state, in the dtypes of the old one; raises ValueError if nothing was added."""

    def disabled_capabilities(self) -> tuple[type, ...]:
        """Return the mixins among the rule's bases that its settings switch off."""
        return ()

    def capability(self, mixin: type[C]) -> C | None:
        """Return the rule as an instance of a mixin of `aggregation.capabilities`, or None if it is none."""
        return self if isinstance(self, mixin) and mixin not in self.disabled_capabilities() else None

    def report(self) -> dict[str, Any]:
        """What happened in the last finished round, for run.json: JSON types.

        Numbers under `checks` stand beside the norms of the global update.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a server optimiser must keep between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most rules keep nothing
        """Puts back what `state_dict` returned."""
