# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: a pure accumulator of updates (design.md 3, algorithms.md 1.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from medflare.core.tensors import State
from medflare.core.update import Update


class Probe(NamedTuple):
    """A state whose loss some sites measure on `examples` of their own training examples."""

    state: State
    sites: list[str]
    examples: int


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
        asks: whether `plan_hints` asks something of every optimiser step of a site (`learners.terms`).
        sums: prefixes of the sums that sites send because `plan_hints` asks for them.
        draws: whether the rule itself draws who trains in a round, with `draw`.
        idle: whether a site may answer with an update of no examples, which weighs nothing and tells sums.
        factor_clip: c, when sites may scale their own weight by a factor within [e^-c, e^c]; 0 when not.
        scored_by: who scores candidates for the rule by the function that its `bind` takes: nobody (""), the
            server on its own validation set, or every site on its own.
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
    asks: bool = False
    sums: tuple[str, ...] = ()
    draws: bool = False
    idle: bool = False
    factor_clip: float = 0.0
    scored_by: Literal["", "server", "sites"] = ""

    @abstractmethod
    def begin(self, global_state: State) -> None:
        """Starts a round from the state that was broadcast; ConfigError if the rule cannot work on it."""

    @abstractmethod
    def add(self, site: str, update: Update) -> None:
        """Takes one accepted update; an UpdateError costs that site its round and nothing else."""

    @abstractmethod
    def finish(self) -> State:
        """The new global state, in the dtypes of the old one; raises ValueError if nothing was added."""

    def metrics_read(self) -> tuple[str, ...]:
        """Names of the updates' metrics by which the rule, as it is set, weighs them."""
        return ()

    def metrics_of_sum(self) -> dict[str, float]:
        """The same metrics of the sum of all updates, where no single one can be read."""
        return dict.fromkeys(self.metrics_read(), 1.0)

    def plan_hints(self) -> dict[str, Any]:
        """JSON values that the controller puts into every site's `RoundPlan.hints`."""
        return {}

    def draw(
        self, number: int, seed: int, examples: Mapping[str, int], asked: Sequence[str], least: int = 1
    ) -> list[str]:
        """Which of the sites that can be asked train in a round, in order of name; before `plan_hints`.

        Args:
            seed: of the run; a draw depends on it, the round and what the rule keeps.
            examples: training examples of every site of the run.
            least: so many different sites, where there are, because a sum over fewer hides too little.
        """
        return sorted(asked)

    def lose(self) -> None:  # noqa: B027 - most rules count no rounds
        """In place of `finish`: the round's updates could not be read, and the state stays as it is."""

    def take_sums(self, totals: State, sites: int) -> State:
        """After `finish`: takes what is the rule's out of the totals of the accepted updates' sums.

        What it returns travels to the sites in the next plan, as its `totals`. sites: K of the whole run.
        """
        return totals

    def probe(self) -> Probe | None:
        """After `take_sums`: what sites shall measure before the round ends, if anything."""
        return None

    def probed(self, losses: Mapping[str, float]) -> None:  # noqa: B027 - most rules probe nothing
        """The losses that sites measured of a probe; those that gave none are not among them."""

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
