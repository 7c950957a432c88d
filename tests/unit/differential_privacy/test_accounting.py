# SPDX-License-Identifier: Apache-2.0
"""Epsilon against published values and known laws.

The golden values were computed with opacus 1.6 and agree with dp-accounting 0.6 (RDP 7.425, PLD 6.70) and
prv-accountant 0.2 (6.70, within 6.60 to 6.80) for the same mechanism.
"""

from __future__ import annotations

import math

import pytest
from scipy import optimize

from medflare.core.errors import ConfigError
from medflare.core.patient_privacy import Mechanism
from medflare.differential_privacy.accounting import Accountant, epsilon, noise_for

GOLDEN = Mechanism(noise=1.0, rate=0.05, steps=400)


@pytest.mark.parametrize(("accountant", "expected"), [("rdp", 7.42), ("prv", 6.71)])
def test_golden_values(accountant: Accountant, expected: float) -> None:
    assert epsilon([GOLDEN], 1e-5, accountant) == pytest.approx(expected, abs=0.01)


def test_without_sampling_it_is_the_gaussian_mechanism() -> None:
    # delta = Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ), exactly (Balle and Wang 2018)
    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    def delta(epsilon: float, noise: float = 2.0) -> float:
        half = 1 / (2 * noise)
        return normal(half - epsilon * noise) - math.exp(epsilon) * normal(-half - epsilon * noise)

    exact = optimize.brentq(lambda value: delta(value) - 1e-5, 0.1, 10)
    release = [Mechanism(noise=2.0, rate=1.0, steps=1)]
    assert exact <= epsilon(release, 1e-5, "prv") <= exact + 0.03
    assert exact <= epsilon(release, 1e-5, "rdp") <= exact + 0.3


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_jobs_add_up_and_their_order_does_not_matter(accountant: Accountant) -> None:
    first, second = Mechanism(noise=1.2, rate=0.1, steps=60), Mechanism(noise=0.8, rate=0.02, steps=100)
    one = epsilon([first], 1e-5, accountant)
    both = epsilon([first, second], 1e-5, accountant)
    assert both > one > 0
    assert epsilon([second, first], 1e-5, accountant) == pytest.approx(both, rel=1e-9)
    halves = [Mechanism(noise=1.2, rate=0.1, steps=30)] * 2
    assert epsilon(halves, 1e-5, accountant) == pytest.approx(one, rel=1e-9)


def test_nothing_done_is_nothing_spent_and_no_noise_is_everything() -> None:
    assert epsilon([], 1e-5) == epsilon([Mechanism(noise=1, rate=0.1, steps=0)], 1e-5) == 0
    for noise in (1e-9, 1e-3):
        assert epsilon([Mechanism(noise=noise, rate=0.5, steps=10)], 1e-5) > 1e3


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        epsilon([GOLDEN], delta)


def test_the_noise_for_an_epsilon_reaches_it_and_hardly_less_does_not() -> None:
    noise = noise_for(8.0, 1e-5, 0.05, 400)
    assert noise == pytest.approx(0.964, abs=0.002)
    assert epsilon([Mechanism(noise=noise, rate=0.05, steps=400)], 1e-5) <= 8.0
    assert epsilon([Mechanism(noise=noise - 2e-3, rate=0.05, steps=400)], 1e-5) > 8.0


def test_the_noise_is_that_of_the_accountant_that_was_asked_for() -> None:
    """The tighter accountant needs less noise for the same epsilon."""
    noise = noise_for(8.0, 1e-5, 0.05, 400, "prv", digits=0.02)
    assert noise < noise_for(8.0, 1e-5, 0.05, 400, digits=0.02)
    assert epsilon([Mechanism(noise=noise, rate=0.05, steps=400)], 1e-5, "prv") <= 8.0
