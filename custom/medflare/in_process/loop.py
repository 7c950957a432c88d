# SPDX-License-Identifier: Apache-2.0
"""Federated training in one process without FLARE: what a run in FLARE must equal, and what studies use."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import (
    AcceptsZeroWeight,
    CountsAbortedRounds,
    ProbesLosses,
    SamplesClients,
    ScoresCandidates,
    UsesAuxiliarySums,
    round_hints,
)
from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import with_prefix
from medflare.core.tensors import State, flatten, unflatten, without_prefix
from medflare.core.update import Update
from medflare.in_process.checkpoint import LoopCheckpoint

LOGGER = logging.getLogger(__name__)
MakePlan = Callable[[int], RoundPlan]
OnRound = Callable[[int, State, Mapping[str, Update]], None]
Available = Callable[[RoundPlan, Sequence[str]], Sequence[str]]
"""(the round's plan, the selected sites) -> those of them that give an update."""


def federate(
    learners: Mapping[str, Learner],
    rule: AggregationRule,
    rounds: int,
    make_plan: MakePlan,
    on_round: OnRound | None = None,
    state: State | None = None,
    judge: Learner | None = None,
    checkpoint: LoopCheckpoint | None = None,
) -> State:
    """Train `rounds` rounds over all sites, in order of their names, and return the shared state.

    Where plans name a visit, a rule that does not accept updates of no examples never sees one, and a round
    with no other update changes nothing (TAR-15).

    Args:
        learners: site -> learner.
        make_plan: round -> plan; `totals`, the rule's hints and the roster are filled in here.
        on_round: called after each round with its number, the new state and the sites' updates, without
            those that the rule refused.
        state: where to start; default the first site's initial state.
        judge: scores candidates on its split `val`, for a rule that scores candidates.
        checkpoint: written after each round. Where it is of an interrupted federation, the rounds that are
            done are not trained again, and the end is the same, bit for bit.
    """
    loop = FederationLoop(learners, rule, make_plan, state, judge)
    kept = checkpoint.read() if checkpoint is not None else None
    if kept is not None:
        loop.put_back(*kept[1:])
    for number in range(kept[0] if kept is not None else 0, rounds):
        updates = loop.round(number)
        if on_round is not None:
            on_round(number, loop.state, updates)
        if checkpoint is not None:
            checkpoint.write(number + 1, *loop.captured())
    return loop.state


class FederationLoop:
    """Runs rounds one by one and keeps what each passes to the next; arguments as in `federate`.

    Attributes:
        state: after the last round; sites: all of them, in order of name.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        rule: AggregationRule,
        make_plan: MakePlan,
        state: State | None = None,
        judge: Learner | None = None,
    ) -> None:
        self.learners, self.rule, self.make_plan = learners, rule, make_plan
        self.sites = sorted(learners)
        self._score = _Score(judge) if judge is not None else None
        self._bind()
        self.state = learners[self.sites[0]].initial_shared() if state is None else state
        self.totals: State = {}
        self.summed: list[int] = []

    @cached_property
    def train(self) -> dict[str, int]:
        """Return the number of training examples of each site."""
        return {site: self.learners[site].describe().examples["train"] for site in self.sites}

    def _bind(self) -> None:
        """Give a rule that scores candidates the function that does it."""
        scored = self.rule.capability(ScoresCandidates)
        if self._score is not None:
            if scored is None:
                name = type(self.rule).__name__
                raise ValueError(f"a judge is of no use to {name}, which scores no candidates.")
            scored.set_score(self._score)
        elif scored is not None and scored.scored_by == "sites":
            scored.set_score(_CrossScore(self.learners))

    def round(self, number: int, available: Available | None = None) -> dict[str, Update]:
        """Run one round and return the sites' updates, without those that the rule refused.

        Args:
            available: which of the selected sites give an update. Where none does, the state stays.
        """
        rule, plan = self.rule, self.make_plan(number)
        sampler = rule.capability(SamplesClients)
        selected = (
            sampler.sample_clients(number, plan.seed, self.train, self.sites) if sampler else self.sites
        )
        clients = selected if available is None else available(plan, selected)
        return self.aggregate(number, ((site, self.fit(site, number)) for site in clients))

    def aggregate(self, number: int, offered: Iterable[tuple[str, Update]]) -> dict[str, Update]:
        """Make updates the new state and return them, without those that the rule refused.

        Args:
            offered: (site, update), worked out one by one. Where there are none, the state stays.
        """
        rule, plan = self.rule, self.make_plan(number)
        rule.begin(self.state)
        updates: dict[str, Update] = {}
        came = False
        for site, update in offered:
            came = True
            try:
                if not self._is_skipped(update, plan):
                    rule.add(site, update)
            except UpdateError as error:
                LOGGER.warning("round %d: the update of %s is left out: %s", number + 1, site, error)
                continue
            updates[site] = update
        if not came:
            _abort(rule)
            return updates
        added = {site: update for site, update in updates.items() if not self._is_skipped(update, plan)}
        if added or not updates:
            self.state = rule.finish()
        else:
            _abort(rule)
        self.totals = _server_totals(rule, _totals(added), len(self.sites))
        _probe(rule, self.learners, self.make_plan(number), self.state)
        self.summed = [index for index, site in enumerate(self.sites) if site in updates]
        return updates

    def _is_skipped(self, update: Update, plan: RoundPlan) -> bool:
        """Return whether an update is kept from the rule: it is of no examples, and the rule accepts none."""
        accepts = self.rule.capability(AcceptsZeroWeight) is not None
        return not update.examples and plan.hints.visit is not None and not accepts

    def fit(self, site: str, number: int) -> Update:
        """Return a site's update for the plan as a controller would send it."""
        plan = self.make_plan(number)
        if self._score is not None:
            self._score.plan = plan
        place = RoundHints(
            site_index=self.sites.index(site), sites=len(self.sites), summed=tuple(self.summed)
        )
        hints = plan.hints | round_hints(self.rule) | place
        self.learners[site].load_shared({name: value.clone() for name, value in self.state.items()})
        return self.learners[site].fit(replace(plan, hints=hints, totals=self.totals))

    def captured(self) -> tuple[State, dict[str, Any]]:
        """Return all that decides the further rounds: tensors, and JSON values."""
        rule, rule_values = flatten(self.rule.state_dict())
        tensors = with_prefix(self.state, "shared/") | with_prefix(self.totals, "totals/")
        tensors |= with_prefix(rule, "rule/")
        local = dict[str, Any]()
        for index, site in enumerate(self.sites):
            kept, local[site] = self.learners[site].local_state()
            tensors |= with_prefix(kept, f"site-{index}/")
        return tensors, {"rule": rule_values, "sites": local, "summed": self.summed}

    def put_back(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Go on from what `captured` returned, of a loop with the same sites, rule and settings."""
        self.state, self.totals = without_prefix(tensors, "shared/"), without_prefix(tensors, "totals/")
        self.rule.load_state_dict(unflatten(without_prefix(tensors, "rule/"), values["rule"]))
        for index, site in enumerate(self.sites):
            kept = without_prefix(tensors, f"site-{index}/")
            self.learners[site].load_local_state(kept, values["sites"][site])
        self.summed = list(values["summed"])


def _abort(rule: AggregationRule) -> None:
    """Close a round that gave the rule nothing; the state stays as it is."""
    if counting := rule.capability(CountsAbortedRounds):
        counting.abort_round()


def _probe(rule: AggregationRule, learners: Mapping[str, Learner], plan: RoundPlan, result: State) -> None:
    """Run the second exchange of a round, on examples of all visits, for a rule that wants one.

    Args:
        result: of the round.
    """
    prober = rule.capability(ProbesLosses)
    wanted = prober.probe() if prober else None
    if prober is None or wanted is None:
        return
    state, sites, examples = wanted
    state = result if state is None else state
    hints = plan.hints.without_visit() | RoundHints(probe=examples)
    plan, losses = replace(plan, hints=hints), dict[str, float]()
    for site in sites:
        learners[site].load_shared({name: value.clone() for name, value in state.items()})
        losses[site] = learners[site].evaluate("train", plan).get("loss", math.nan)
    prober.receive_losses(losses)


class _Score:
    """(site, candidate state) -> the judge's loss on its split `val`."""

    def __init__(self, judge: Learner) -> None:
        self.judge, self.plan = judge, RoundPlan(round=0, rounds=1)

    def __call__(self, site: str, state: State) -> float:
        self.judge.load_shared({name: value.clone() for name, value in state.items()})
        plan = replace(self.plan, hints=self.plan.hints | RoundHints(loss_only=True))
        return self.judge.evaluate("val", plan)["loss"]


class _CrossScore:
    """(site, candidate state) -> mean of all sites' losses on their splits `val`, weighted by examples."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self.learners = learners
        self.examples = {site: local.describe().examples["val"] for site, local in learners.items()}

    def __call__(self, site: str, state: State) -> float:
        total = 0.0
        for name, learner in self.learners.items():
            if self.examples[name]:
                total += self.examples[name] * _Score(learner)(site, state)
        return total / sum(self.examples.values())


def _totals(updates: Mapping[str, Update]) -> dict[str, Tensor]:
    """Return the totals over the sites of their updates' auxiliary sums."""
    out: dict[str, Tensor] = {}
    for update in updates.values():
        for name, value in update.sums.items():
            out[name] = out[name] + value if name in out else value.clone()
    return out


def _server_totals(rule: AggregationRule, totals: State, sites: int) -> State:
    """Return the totals that go down with the next plan, once the rule has taken its own out of them."""
    summing = rule.capability(UsesAuxiliarySums)
    return summing.update_server_state(totals, sites) if summing else totals
