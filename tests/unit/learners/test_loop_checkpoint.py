# SPDX-License-Identifier: Apache-2.0
"""A checkpoint holds all that passes from one round to the next of a federation in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.core.errors import UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.in_process.checkpoint import LoopCheckpoint
from medflare.in_process.loop import federate

ROUNDS = 5


class Remembering:
    """A learner whose update is another one for anything that it was told or has kept.

    Attributes:
        kept: of its own rounds; it never leaves.
    """

    def __init__(self, number: int) -> None:
        self.number, self.kept, self.shared = number, torch.zeros(2, dtype=torch.float64), State()
        self.trained = 0

    def describe(self) -> Any:
        return SimpleNamespace(examples={"train": self.number + 1, "val": 1})

    def initial_shared(self) -> State:
        return {"w": torch.ones(2, dtype=torch.float64)}

    def load_shared(self, state: State) -> None:
        self.shared = state

    def fit(self, plan: RoundPlan) -> Update:
        told = sum(float(value.sum()) for value in plan.totals.values())
        told += 3 * len(plan.hints.summed) + sum(plan.hints.summed) + plan.round
        self.trained += 1
        self.kept += 0.1 * (self.number + 1) * torch.tensor([1.0, told], dtype=torch.float64)
        delta = 0.05 * (self.kept - self.shared["w"])
        sums = {"count": torch.tensor([self.trained * 0.5 + self.number], dtype=torch.float64)}
        return Update(delta={"w": delta}, examples=self.number + 1, metrics={"round": plan.round}, sums=sums)

    def local_state(self) -> tuple[State, dict[str, Any]]:
        return {"kept": self.kept.clone()}, {"trained": self.trained}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.kept, self.trained = tensors["kept"].clone(), int(values["trained"])


def choosy(name: str) -> AggregationRule:
    """Return a rule that refuses an update of site b every other round: the sites of the last sum differ."""
    rule = make_rule(name, {})
    add = rule.add

    def add_or_refuse(site: str, update: Update) -> None:
        if site == "b" and update.metrics["round"] % 2:
            raise UpdateError("not this one")
        add(site, update)

    rule.add = add_or_refuse  # type: ignore[method-assign]
    return rule


def trained(checkpoint: LoopCheckpoint | None, rounds: int, rule: str) -> tuple[State, int]:
    """Return the state after so many rounds, and how many updates were trained now."""
    learners = {"a": Remembering(0), "b": Remembering(1), "c": Remembering(2)}
    before = 0

    def note(number: int, state: State, updates: Mapping[str, Update]) -> None:
        nonlocal before
        before += 1
        if checkpoint is not None:
            checkpoint.noted.append([number, sorted(updates)])

    state = federate(
        learners,  # type: ignore[arg-type]
        choosy(rule),
        rounds,
        lambda number: RoundPlan(round=number, rounds=ROUNDS, seed=3),
        note,
        checkpoint=checkpoint,
    )
    return state, before


@pytest.mark.parametrize("done", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", ["weighted_mean", "fedavgm", "fedadam"])
def test_a_federation_that_goes_on_ends_as_one_that_was_never_interrupted(
    tmp_path: Path, rule: str, done: int
) -> None:
    whole, _ = trained(None, ROUNDS, rule)
    trained(LoopCheckpoint(tmp_path / "state"), done, rule)
    checkpoint = LoopCheckpoint(tmp_path / "state")
    state, now = trained(checkpoint, ROUNDS, rule)
    assert now == ROUNDS - done
    assert torch.equal(state["w"], whole["w"])
    assert [number for number, _ in checkpoint.noted] == list(range(ROUNDS))
    assert checkpoint.noted[1][1] == ["a", "c"]


def test_a_federation_that_is_done_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = trained(LoopCheckpoint(tmp_path / "state"), ROUNDS, "fedavgm")
    again, now = trained(LoopCheckpoint(tmp_path / "state"), ROUNDS, "fedavgm")
    assert now == 0
    assert torch.equal(first["w"], again["w"])
