# SPDX-License-Identifier: Apache-2.0
"""The variance of a step that is worked out is that of steps that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from method_comparison.tasks.step_variance import relative_error, relative_variance

D = np.array([0.4, 0.3, 0.2, 0.1])
DELTAS = np.random.default_rng(0).standard_normal((4, 6))
URNS = np.array([[0.8, 0.0, 0.2, 0.0], [0.0, 0.6, 0.2, 0.2]])
"""Of DD-15's golden vector: clusters {1, 3} and {2, 4}."""


@pytest.mark.parametrize("odds", [URNS, np.tile([0.25] * 4, (3, 1)), np.tile([0.1, 0.2, 0.3, 0.4], (2, 1))])
def test_it_is_that_of_many_draws_which_are_unbiased(odds: np.ndarray) -> None:
    random, whole = np.random.default_rng(1), D @ DELTAS
    picks = np.stack([random.choice(4, 200_000, p=row) for row in odds])
    steps = (D / odds.sum(0))[picks][..., None] * DELTAS[picks]
    drawn = steps.sum(0)
    assert drawn.mean(0) == pytest.approx(whole, abs=0.02)
    expected = float(np.square(drawn - whole).sum(1).mean() / np.square(whole).sum())
    assert relative_variance(DELTAS @ DELTAS.T, D, odds) == pytest.approx(expected, rel=0.02)


def test_one_q_has_the_variance_of_the_printed_formula() -> None:
    q, draws = np.array([0.1, 0.2, 0.3, 0.4]), 5
    gram = DELTAS @ DELTAS.T
    whole = float(D @ gram @ D)
    expected = (float((D**2 * np.diag(gram) / q).sum()) - whole) / draws / whole
    assert relative_variance(gram, D, np.tile(q, (draws, 1))) == pytest.approx(expected)


@pytest.mark.parametrize("odds", [URNS, np.tile([0.1, 0.2, 0.3, 0.4], (2, 1))])
def test_the_error_against_some_hospitals_is_bias_and_variance(odds: np.ndarray) -> None:
    aim, random = np.array([0.5, 0.5, 0.0, 0.0]), np.random.default_rng(2)
    picks = np.stack([random.choice(4, 200_000, p=row) for row in odds])
    drawn = ((D / odds.sum(0))[picks][..., None] * DELTAS[picks]).sum(0)
    expected = float(np.square(drawn - aim @ DELTAS).sum(1).mean() / np.square(aim @ DELTAS).sum())
    assert relative_error(DELTAS @ DELTAS.T, D, odds, aim) == pytest.approx(expected, rel=0.02)
