# SPDX-License-Identifier: Apache-2.0
"""Data order: 2 % slices of a per-epoch shuffle, not sampling with replacement."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from medflare.core.data_order import DataOrder, batches, derived_seed, examples_to_visit
from medflare.core.plan import RoundPlan


def test_fifty_rounds_of_two_percent_are_one_epoch() -> None:
    order = DataOrder(500, seed=1)
    rows = [i for _ in range(50) for i in order.take(10)]
    assert sorted(rows) == list(range(500))


@given(st.integers(1, 60), st.lists(st.integers(0, 40), max_size=8))
def test_any_cutting_visits_every_example_once_an_epoch(size: int, cuts: list[int]) -> None:
    rows = DataOrder(size, seed=3).take(sum(cuts))
    order = DataOrder(size, seed=3)
    assert [i for cut in cuts for i in order.take(cut)] == rows
    for start in range(0, len(rows) - size + 1, size):
        assert sorted(rows[start : start + size]) == list(range(size))


def test_position_is_all_that_must_survive() -> None:
    first = DataOrder(30, seed=2)
    first.take(17)
    assert DataOrder(30, seed=2, position=17).take(25) == first.take(25)


def test_plan_decides_how_much() -> None:
    assert examples_to_visit(RoundPlan(round=0, rounds=1, fraction=0.02), 1000, 16) == 20
    assert examples_to_visit(RoundPlan(round=0, rounds=1, fraction=0.02), 100, 16) == 16
    assert examples_to_visit(RoundPlan(round=0, rounds=1, steps=3), 100, 16) == 48
    assert examples_to_visit(RoundPlan(round=0, rounds=1, steps=3), 5, 16) == 15
    assert examples_to_visit(RoundPlan(round=0, rounds=1), 100, 16) == 100
    assert examples_to_visit(RoundPlan(round=0, rounds=1), 100, 16, epochs=3) == 300
    assert examples_to_visit(RoundPlan(round=0, rounds=1, steps=3), 100, 16, epochs=3) == 48


def test_batches_hold_similar_lengths_and_never_one_example() -> None:
    lengths = list(range(100))
    cut = batches(list(range(33)), lengths, 16, seed=0)
    assert sorted(i for part in cut for i in part) == list(range(33))
    assert all(len(part) > 1 for part in cut)
    assert all(max(part) - min(part) == len(part) - 1 for part in cut)


@given(st.integers(1, 50), st.integers(1, 8), st.integers(2, 16), st.integers(0, 100))
def test_a_plan_in_steps_is_kept_and_no_batch_holds_an_image_twice(
    size: int, steps: int, batch: int, position: int
) -> None:
    plan = RoundPlan(round=0, rounds=1, steps=steps)
    taken = DataOrder(size, seed=1, position=position).take(examples_to_visit(plan, size, batch))
    cut = batches(taken, list(range(size)), min(batch, size), seed=0)
    assert len(cut) == steps
    repeated = sum(len(set(part)) < len(part) for part in cut)
    assert repeated <= max(Counter(taken).values()) - 1


def test_derived_seeds_depend_on_every_part() -> None:
    assert len({derived_seed(1, "a"), derived_seed(1, "b"), derived_seed(2, "a"), derived_seed("1a")}) == 4
