# SPDX-License-Identifier: Apache-2.0
"""Capabilities and needs of rules beyond begin, add and finish: one small mixin for each.

A rule inherits the mixins it implements. Controllers find them with `rule.capability(Mixin)`, which returns
the rule under the mixin's type, or None; nobody probes a rule with isinstance, getattr or strings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from medflare.aggregation.base import AggregationRule
from medflare.core.hints import RoundHints
from medflare.core.sketch import Sketch
from medflare.core.tensors import State
from medflare.core.timing import Timing

Score = Callable[[str, State], float]
"""(site, candidate state θ + Δ_k) -> its loss on validation data."""


class Probe(NamedTuple):
    """A state whose loss some sites measure on `examples` of their own training examples.

    `state` is None for the result of the round, as the sites receive it for the next one.
    """

    state: State | None
    sites: list[str]
    examples: int


class SendsHints(ABC):
    """Sends values to every site in `RoundPlan.hints`."""

    @abstractmethod
    def round_hints(self) -> RoundHints:
        """Return what sites need to know of the coming round; after `sample_clients`."""


class AsksClientTerms(SendsHints):
    """Changes or observes every optimiser step of a site, whatever its method (`learners.client_terms`)."""

    @abstractmethod
    def client_terms(self) -> RoundHints:
        """Return the hints that ask for the terms of `learners.client_terms`."""

    def round_hints(self) -> RoundHints:
        return self.client_terms()


class SamplesClients(ABC):
    """Chooses who trains in a round; the other sites stand in run.json as not drawn."""

    @abstractmethod
    def sample_clients(
        self,
        round_number: int,
        seed: int,
        examples: Mapping[str, int],
        eligible: Sequence[str],
        min_clients: int = 1,
    ) -> list[str]:
        """Return the eligible clients that train in this round, in order of name; before `round_hints`.

        Args:
            seed: of the run; the sample depends on it, the round and the state of the rule.
            examples: training examples of every site of the run.
            min_clients: so many different clients, where there are, because a sum over fewer hides too
                little.

        Raises:
            ConfigError: no eligible client can be sampled.
        """


class CountsAbortedRounds(ABC):
    """Keeps a count of rounds, so that it must know of those that are lost."""

    @abstractmethod
    def abort_round(self) -> None:
        """Close a round whose updates could not be read; called in place of `finish`."""


class UsesAuxiliarySums(ABC):
    """Works on sums that sites send beside their update.

    Attributes:
        auxiliary_sums: prefixes of their names; further sums belong to the method and pass through.
        assigned_sums: names of those that the server assigned to each site, which may differ at will.
    """

    auxiliary_sums: ClassVar[tuple[str, ...]] = ()
    assigned_sums: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def update_server_state(self, totals: State, sites: int) -> State:
        """Take the rule's own sums out of the totals over the accepted updates; called after `finish`.

        Args:
            totals: name -> sum over the accepted updates.
            sites: number of sites of the whole run.

        Returns:
            The totals that travel to the sites in the next plan.
        """


class ProbesLosses(ABC):
    """Has some sites measure the loss of a state before the round ends.

    Attributes:
        probes_result: whether that state is always the round's result, which a site can compare with what it
            is sent to train on next.
    """

    probes_result: bool = False

    @abstractmethod
    def probe(self) -> Probe | None:
        """Return what sites shall measure, if anything; called after `update_server_state`."""

    @abstractmethod
    def receive_losses(self, losses: Mapping[str, float]) -> None:
        """Take the losses that sites measured of a probe; those that gave none are not among them."""


class ScoresCandidates(ABC):
    """Weighs each update by a loss of the model it leads to, measured by a function that is handed in."""

    scored_by: Literal["server", "sites"]
    """The party that measures: the server on its own validation data, or every site on its own."""

    @abstractmethod
    def set_score(self, score: Score) -> None:
        """Take the function that measures a candidate."""


class AllowsSiteFactors(ABC):
    """Lets a site scale the weight of its own update."""

    factor_clip: float
    """c: factors lie within [e^-c, e^c]."""


class AcceptsZeroWeight(ABC):  # noqa: B024 - a declaration without methods
    """Takes updates of no examples, which weigh nothing and bring auxiliary sums."""


class NeedsLatencies(ABC):
    """Chooses or weighs clients by the seconds they take."""

    @abstractmethod
    def observe_latency(self, site: str, timing: Timing) -> None:
        """Take the seconds a round took a site."""

    @abstractmethod
    def report_timeout(self, site: str, waited: float) -> None:
        """Take the seconds after which a sampled site still had given no update that counts."""


class NeedsSumMembers(ABC):
    """Has to know whose updates are in a sum that the server cannot look into."""

    @abstractmethod
    def set_sum_members(self, sites: Iterable[str]) -> None:
        """Take the sites of the sum; called before `finish`."""


class NeedsSketches(ABC):
    """Compares sites by sketches of their knowledge graphs."""

    sketch_period: int
    """Exchanges after which sites are asked whether their sketch has changed."""

    @abstractmethod
    def set_sketch(self, site: str, sketch: Sketch | None) -> None:
        """Take a first or a newer sketch, or None where a site has none any more."""


class NeedsExactSizes(ABC):
    """Compares sites by exact sizes of their knowledge graphs and of what pairs of them share."""

    @abstractmethod
    def set_exact_sizes(self, sizes: Mapping[str, int], shared: Mapping[tuple[str, str], int]) -> None:
        """Take elements of each site's graph, and of each pair's intersection."""


class ReadsMetrics(ABC):
    """Weighs updates by metrics they hold."""

    @abstractmethod
    def metrics_read(self) -> tuple[str, ...]:
        """Return the names of the metrics that the rule, with its settings, weighs by."""

    def metrics_of_sum(self) -> dict[str, float]:
        """Return the same metrics for the sum of all updates, where no single one can be read."""
        return dict.fromkeys(self.metrics_read(), 1.0)


class TrainsVisits(ABC):
    """Makes of one round several exchanges, one for each visit.

    Attributes:
        visits: T, exchanges of a round.
    """

    visits: int


def round_hints(rule: AggregationRule) -> RoundHints:
    """Return the hints of a rule that sends any; hints without members otherwise."""
    sender = rule.capability(SendsHints)
    return sender.round_hints() if sender else RoundHints()


def factor_clip(rule: AggregationRule) -> float:
    """Return c where sites may scale their own weight within [e^-c, e^c]; 0 where they may not."""
    scaled = rule.capability(AllowsSiteFactors)
    return scaled.factor_clip if scaled else 0.0
