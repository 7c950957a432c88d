# SPDX-License-Identifier: Apache-2.0
"""Client terms: demands of an aggregation rule on every optimiser step of a site, whatever the method.

A rule names its terms in `RoundPlan.hints`; a learner has one `ClientTerms` and shows it every optimiser of a
round. A new term is one file and one line in the table below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import SharedSpec, State
from medflare.learners.client_terms.base import ClientTerm, Shared, TermOutput, Watch, trainable
from medflare.learners.client_terms.control_variates import ControlVariates
from medflare.learners.client_terms.importance import ImportanceWeight
from medflare.learners.client_terms.proximal import Proximal
from medflare.learners.client_terms.snapshot import Snapshot

__all__ = ["CLIENT_TERMS", "ClientTerms", "TermOutput", "Watch", "no_watch", "requested_sums"]

CLIENT_TERMS: dict[str, type[ClientTerm]] = {
    "drfa": Snapshot,
    "fedprox": Proximal,
    "importance": ImportanceWeight,
    "scaffold": ControlVariates,
}
"""Name in local state and in messages -> the term."""
PREFIX = "terms."
"""Before the names of a learner's local state that belong to client terms."""


def requested_terms(hints: RoundHints) -> list[str]:
    """Return the names of the terms that the hints ask for, sorted."""
    return sorted(name for name, term in CLIENT_TERMS.items() if term.is_requested(hints))


class ClientTerms:
    """The client terms of a run's rule at one site; a round is `begin`, training with `watch`, `finish`.

    Terms act between clipping and the optimiser's step, on the optimiser's parameters and nothing else.

    Args:
        shared: gives the live tensors that may leave, by name.
    """

    def __init__(self, site: str, shared: Callable[[], Shared]) -> None:
        self.site, self.shared = site, shared
        self._terms: dict[str, ClientTerm] = {}
        self._active: list[ClientTerm] = []
        self._hooks: list[Any] = []

    def sums_spec(self, hints: RoundHints) -> SharedSpec:
        """Return the auxiliary sums that updates will hold because these hints ask for them."""
        spec: SharedSpec = {}
        for term in self._requested(hints):
            spec |= term.sums_spec(self.shared())
        return spec

    def _requested(self, hints: RoundHints) -> list[ClientTerm]:
        return [self._terms.setdefault(name, CLIENT_TERMS[name]()) for name in requested_terms(hints)]

    def begin(self, plan: RoundPlan) -> None:
        """Start a round from the shared tensors as they are; what an unfinished round left is dropped.

        Raises:
            ConfigError: a term is asked for and no shared tensor is trained here.
        """
        self._release()
        self._active, shared = self._requested(plan.hints), self.shared()
        if self._active and not trainable(shared):
            raise ConfigError(
                "the rule asks something of the shared parameters' gradients, and none of them learns here. "
                "Use rule 'weighted_mean'."
            )
        for term in self._active:
            term.begin(self.site, shared, plan)

    def watch(self, optimiser: torch.optim.Optimizer, steps: int) -> None:
        """Follow an optimiser, which will take `steps` steps, until `finish`."""
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

    def finish(self) -> TermOutput:
        """Return what the update holds beside its delta, over all active terms."""
        output = TermOutput()
        for term in self._active:
            part = term.finish()
            output.sums |= part.sums
            output.metrics |= part.metrics
            output.factor *= part.factor
        self._release()
        return output

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._active = [], []

    def state(self) -> State:
        """Return the local state of all terms, under names that no learner uses."""
        return {
            f"{PREFIX}{name}/{key}": value
            for name, term in self._terms.items()
            for key, value in term.state().items()
        }

    def restore(self, tensors: State) -> State:
        """Put back what `state` returned; return the tensors that belong to the learner."""
        self._release()
        self._terms = {}
        for name, term_class in CLIENT_TERMS.items():
            start = f"{PREFIX}{name}/"
            kept = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            if kept:
                self._terms[name] = term_class()
                self._terms[name].restore(kept)
        return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}


def no_watch(optimiser: torch.optim.Optimizer, steps: int) -> None:
    """A `Watch` for training of which no rule asks anything."""


def requested_sums(terms: ClientTerms | None, hints: RoundHints) -> SharedSpec:
    """Return the auxiliary sums that a rule's hints ask of a learner.

    Args:
        terms: the learner's client terms; None for a method without an optimiser.

    Raises:
        ConfigError: the hints ask for a term, and the method shows no optimiser to client terms.
    """
    if terms is not None:
        return terms.sums_spec(hints)
    if names := requested_terms(hints):
        raise ConfigError(
            f"rule '{names[0]}' asks something of every optimiser step, which this method does not do. "
            "Use rule 'weighted_mean'."
        )
    return {}
