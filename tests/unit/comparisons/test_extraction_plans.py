# SPDX-License-Identifier: Apache-2.0
"""The plans of extraction comparisons: the same passes however often updates are exchanged."""

from __future__ import annotations

import pytest

from method_comparison.tasks.extraction import Extraction, ExtractionMethod, ExtractionSettings
from method_comparison.tasks.extraction_training import make_plans


def test_with_one_exchange_a_round_the_learner_decides_how_long_it_trains() -> None:
    plans = make_plans(3, 1, epochs=2, seed=5)
    assert [(plan.round, plan.rounds, plan.seed, plan.fraction) for plan in plans] == [
        (0, 3, 5, None),
        (1, 3, 5, None),
        (2, 3, 5, None),
    ]


@pytest.mark.parametrize("epochs", [1, 2])
def test_more_exchanges_make_no_more_passes(epochs: int) -> None:
    plans = make_plans(3, 4, epochs, seed=0)
    assert [plan.round for plan in plans] == list(range(12))
    assert {plan.rounds for plan in plans} == {12}
    assert sum(plan.fraction or 0 for plan in plans) == pytest.approx(3 * epochs)


def test_a_row_without_exchanges_is_the_one_it_was() -> None:
    """Units that were trained before the setting existed are not trained again."""
    assert "exchanges" not in ExtractionMethod().model_dump()
    assert ExtractionMethod(exchanges=4).model_dump()["exchanges"] == 4
    Extraction().check(ExtractionSettings(), ExtractionMethod(exchanges=4, rule="fedavgm"))
