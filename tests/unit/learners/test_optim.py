# SPDX-License-Identifier: Apache-2.0
"""Rates over a run, and the optimiser's single step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from medflare.learners.optim import (
    FIRST,
    CosinePart,
    adam_amsgrad,
    adamw,
    cosine,
    rate_factor,
    scale_rates,
    take_step,
)


def test_the_cosine_falls_from_one_to_nothing_and_stays_there() -> None:
    assert [cosine(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1, 0.5 + 0.5 / math.sqrt(2), 0.5, 0])
    assert cosine(1.2) == pytest.approx(0)


def test_the_warm_up_rises_from_a_little_to_the_full_rate_and_the_cosine_begins_there() -> None:
    assert [cosine(p, 0.2) for p in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([FIRST, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("schedule", "expected"), [("cosine", [FIRST, 0.5, 1, 0.5, 0]), ("constant", [FIRST, 0.5, 1, 1, 1])]
)
def test_a_constant_rate_warms_up_too(schedule: str, expected: list[float]) -> None:
    assert [rate_factor(schedule, p, 0.2) for p in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx(expected)
    assert rate_factor(schedule, 0.0, 0.0) == 1.0


def test_rounds_that_share_a_cosine_follow_one_another() -> None:
    parts = [CosinePart(k / 4, (k + 1) / 4, 0.1) for k in range(4)]
    assert [part.factor(1.0) for part in parts[:-1]] == [part.factor(0.0) for part in parts[1:]]
    assert [part.factor(0.5) for part in parts] == [cosine(p, 0.1) for p in (0.125, 0.375, 0.625, 0.875)]
    assert not any(part.is_whole for part in parts)
    assert CosinePart(warmup=0.1).is_whole


def groups() -> list[tuple[list[nn.Parameter], float]]:
    return [([nn.Parameter(torch.ones(2))], 0.1), ([nn.Parameter(torch.ones(3))], 0.01), ([], 1.0)]


@pytest.mark.parametrize("make", [adamw, adam_amsgrad])
def test_every_group_keeps_its_own_base_rate(make: object) -> None:
    optimiser = make(groups(), 0.3)  # type: ignore[operator]
    assert [len(group["params"][0]) for group in optimiser.param_groups] == [2, 3]
    for factor in (0.5, 0.25):
        scale_rates(optimiser, factor)
        assert [group["lr"] for group in optimiser.param_groups] == pytest.approx(
            [0.1 * factor, 0.01 * factor]
        )
    assert {group["weight_decay"] for group in optimiser.param_groups} == {0.3}
    assert {group["amsgrad"] for group in optimiser.param_groups} == {make is adam_amsgrad}


@pytest.mark.parametrize(("clip", "moved"), [(None, 10.0), (20.0, 10.0), (1.0, 1.0)])
def test_a_step_forgets_the_gradients_before_it_and_shortens_long_ones(
    clip: float | None, moved: float
) -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([100.0, 100.0])
    optimiser = torch.optim.SGD([weight], lr=1.0)
    take_step(optimiser, weight @ torch.tensor([6.0, 8.0]), clip)
    assert weight.norm().item() == pytest.approx(moved, rel=1e-5)
    assert (weight[1] / weight[0]).item() == pytest.approx(8 / 6)
