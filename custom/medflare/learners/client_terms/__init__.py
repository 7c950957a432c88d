# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule asks of every site's training, whatever the method (algorithms.md 7.2, 7.3, 7.6).

A rule names it in its `plan_hints`; a learner has one `ClientTerms` and shows it every optimiser of a round.
A new demand is one file and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.learners.client_terms.base import Shared, Term, Told, Watch, learned
from medflare.learners.client_terms.control_variates import ControlVariates
from medflare.learners.client_terms.importance import ImportanceWeight
from medflare.learners.client_terms.proximal import Proximal
from medflare.learners.client_terms.snapshot import Snapshot

__all__ = ["TERMS", "ClientTerms", "Told", "Watch", "asked_sums", "unwatched"]

TERMS: dict[str, type[Term]] = {
    "drfa": Snapshot,
    "fedprox": Proximal,
    "importance": ImportanceWeight,
    "scaffold": ControlVariates,
}
"""Key of `RoundPlan.hints` -> what it asks for."""
PREFIX = "terms."
"""Before the names of a learner's local state that belong here."""


class ClientTerms:
    """The demands of a run's rule at one site; a round is `begin`, training with `watch`, `finish`.

    Demands act between clipping and the optimiser's step, on its own optimiser and nobody else's.

    Args:
        shared: gives the live tensors that may leave, by name.
    """

    def __init__(self, site: str, shared: Callable[[], Shared]) -> None:
        self.site, self.shared = site, shared
        self._terms: dict[str, Term] = {}
        self._active: list[Term] = []
        self._hooks: list[Any] = []

    def sums_spec(self, hints: Mapping[str, Any]) -> SharedSpec:
        """The sums that updates will hold because these hints ask for them."""
        spec: SharedSpec = {}
        for term in self._asked(hints):
            spec |= term.sums_spec(self.shared())
        return spec

    def _asked(self, hints: Mapping[str, Any]) -> list[Term]:
        return [self._terms.setdefault(name, TERMS[name]()) for name in sorted(TERMS) if name in hints]

    def begin(self, plan: RoundPlan) -> None:
        """Starts a round from the shared tensors as they are; what an unfinished one left is gone."""
        self._release()
        self._active, shared = self._asked(plan.hints), self.shared()
        if self._active and not learned(shared):
            raise ConfigError(
                "the rule asks something of the shared parameters' gradients, and none of them learns here. "
                "Use rule 'weighted_mean'."
            )
        for term in self._active:
            term.begin(self.site, shared, plan)

    def watch(self, optimiser: torch.optim.Optimizer, steps: int) -> None:
        """Follows an optimiser until `finish`; it will take so many steps."""
        if not self._active:
            return
        done = 0

        def before(*_: Any) -> None:
            with torch.no_grad():
                for term in self._active:
                    term.before_step(optimiser)

        def after(*_: Any) -> None:
            nonlocal done
            done += 1
            for term in self._active:
                term.after_step(done, steps)

        self._hooks += [
            optimiser.register_step_pre_hook(before),
            optimiser.register_step_post_hook(after),
        ]

    def finish(self) -> Told:
        """What the update has to hold beside its differences."""
        told = Told()
        for term in self._active:
            own = term.finish()
            told.sums |= own.sums
            told.metrics |= own.metrics
            told.factor *= own.factor
        self._release()
        return told

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._active = [], []

    def state(self) -> State:
        """Local state of all demands, under names that no learner uses."""
        return {
            f"{PREFIX}{name}/{key}": value
            for name, term in self._terms.items()
            for key, value in term.state().items()
        }

    def restore(self, tensors: State) -> State:
        """Puts back what `state` returned, and returns the tensors that are the learner's own."""
        self._release()
        self._terms = {}
        for name, kind in TERMS.items():
            start = f"{PREFIX}{name}/"
            own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            if own:
                self._terms[name] = kind()
                self._terms[name].restore(own)
        return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}


def unwatched(optimiser: torch.optim.Optimizer, steps: int) -> None:
    """A `Watch` for training of which no rule asks anything."""


def asked_sums(learner: object, hints: Mapping[str, Any]) -> SharedSpec:
    """The sums that a rule's hints ask of a learner; ConfigError where its method cannot do what they ask."""
    asked = sorted(set(TERMS) & set(hints))
    terms: ClientTerms | None = getattr(learner, "terms", None)
    if asked and terms is None:
        raise ConfigError(
            f"rule '{asked[0]}' asks something of every optimiser step, which this method does not do. "
            "Use rule 'weighted_mean'."
        )
    return terms.sums_spec(hints) if terms is not None else {}
