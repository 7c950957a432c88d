# SPDX-License-Identifier: Apache-2.0
"""The protocol between local training and whatever moves tensors between sites (design.md 3).

A learner trains one task at one site and knows nothing about federation. It declares which tensors are
shared; everything else is local for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.run_record import EvaluationRecord

State = dict[str, Tensor]
SharedSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What the server asks of a site in one round.

    Attributes:
        round: 0-based index; rounds: how many there will be.
        steps: optimiser steps on mini-batches, or None to let `fraction` decide.
        fraction: share of the local training examples to visit; consecutive slices of a per-epoch
            shuffle (algorithms.md 2.3). None with `steps` None means one epoch.
        seed: of the run; a learner derives its own from it, its site and the round.
        limit: at most this many studies in an evaluation of this round; None for all.
        hints: further values a controller sends to a method, JSON types only. Always present from a
            federation: `site_index` and `sites` (position of this site in the roster, and its size) and
            `summed` (positions of the sites whose sums are in `totals`). `loss_only` in an evaluation
            that needs nothing but `loss` (the server's scoring of updates), `probe` in one that needs it of
            so many examples alone, which the round draws (`order.drawn`). What a rule asks of training stands
            under the keys of `learners.terms.TERMS`.
        totals: sums over the accepted updates' `sums` of the previous round, for methods that declare any.
    """

    round: int
    rounds: int
    steps: int | None = None
    fraction: float | None = None
    seed: int = 0
    limit: int | None = None
    hints: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Update:
    """What a site returns for a round: differences of shared tensors, counts and declared sums.

    Attributes:
        delta: fp32 where it was computed; a rule sees it in the dtype in which it travelled.
        factor: multiplies `examples` as the weight of the update; other than 1 only where the plan's hints
            ask a site to score itself (`learners.influence`).
    """

    delta: State
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    sums: State = field(default_factory=dict)
    factor: float = 1.0


class Learner(Protocol):
    """Local training of one method at one site."""

    def describe(self) -> dict[str, Any]:
        """JSON facts exchanged before round 1.

        Keys: `backbone` (name, fingerprint), `parameters` (trainable counts by part),
        `adapter_config` (PEFT's dict), `export` (what the server needs to write the result folder),
        `examples` (count per split), `validation` (count and `sha256` of shared notes, where there are any).
        """
        ...

    def shared_spec(self) -> SharedSpec:
        """Names, shapes and dtypes of what may leave; fixed before round 1."""
        ...

    def sums_spec(self, sites: int) -> SharedSpec:
        """What the auxiliary sums of an update are like when `sites` sites take part; often empty."""
        ...

    def initial_shared(self) -> State:
        """Values of the shared tensors before round 1: public weights and a seed, nothing of a patient."""
        ...

    def load_shared(self, state: State) -> None:
        """Takes the server's state; raises UpdateError on unknown or missing names, shapes, non-finite."""
        ...

    def fit(self, plan: RoundPlan) -> Update:
        """Trains from the state loaded last."""
        ...

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        """Numbers on one split with the state loaded last; may leave the site, so no per-patient value."""
        ...

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        """After the last round: final test quality of each adapter (aggregates, which may leave), and into
        `folder` what stays at the site for ever (personalised adapter, test predictions)."""
        ...

    def local_state(self) -> tuple[State, dict[str, Any]]:
        """What must survive a restart (tensors, JSON values) and never leaves."""
        ...

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Puts back what `local_state` returned."""
        ...


def check_state(state: Mapping[str, Tensor], spec: SharedSpec, whose: str) -> None:
    """Raises UpdateError that names every tensor of `state` that `spec` does not allow.

    Checked: the set of names, shapes, and that every value is finite. Dtype may differ (bf16 on the wire).
    """
    problems = [f"unexpected tensor '{name}'" for name in sorted(set(state) - set(spec))]
    problems += [f"missing tensor '{name}'" for name in sorted(set(spec) - set(state))]
    for name in sorted(set(state) & set(spec)):
        shape = spec[name][0]
        if tuple(state[name].shape) != tuple(shape):
            problems.append(f"'{name}' has shape {tuple(state[name].shape)}, expected {tuple(shape)}")
        elif not finite(state[name]):
            problems.append(f"'{name}' has values that are not finite")
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise UpdateError(f"{whose}: {shown}.")


def finite(value: Tensor) -> bool:
    """Whether every value is: smallest and largest are, and NaN goes through to both. A mask of all values
    would cost ten times the seconds."""
    if not value.is_floating_point() or not value.numel():
        return True
    return all(math.isfinite(float(edge)) for edge in torch.aminmax(value))
