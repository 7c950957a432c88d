# SPDX-License-Identifier: Apache-2.0
"""Exact discrete Gaussian numbers (Canonne, Kamath and Steinke 2020, algorithms 1 to 3), as vectors.

A discrete Gaussian of parameter σ takes each whole number x with probability proportional to exp(-x²/2σ²).
It is added to values in the ring of masks, where a rounded normal number would have no proven guarantee.
Nothing here is computed with floating point: a decision compares uniform whole numbers below 2^62.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medflare.core.secure_random import SecureRandom

MOST_SIGMA = 1 << 30
"""Largest σ: products of two numbers of that size stay below 2^62."""
PIECE = 1 << 17

Flip = Callable[[np.ndarray], np.ndarray]
"""(places) -> bool for each: one independent draw."""


def discrete_gaussian(sigma: int, count: int, random: SecureRandom) -> np.ndarray:
    """Return int64 (count,) of a discrete Gaussian.

    Args:
        sigma: σ, 1 to 2^30, a whole number.

    Raises:
        ValueError: sigma is not.
    """
    if not 1 <= sigma <= MOST_SIGMA:
        raise ValueError(f"sigma is {sigma}; expected 1 to {MOST_SIGMA}.")
    out = np.empty(count, dtype=np.int64)
    for start in range(0, count, PIECE):
        part = out[start : start + PIECE]
        _until(part, lambda size: _candidates(sigma, size, random))
    return out


def _until(out: np.ndarray, draw: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> None:
    """Fill `out` with draws, each again until it is accepted; `draw` returns (values, accepted)."""
    open_places = np.arange(len(out))
    while len(open_places):
        values, accepted = draw(len(open_places))
        out[open_places[accepted]] = values[accepted]
        open_places = open_places[~accepted]


def _candidates(sigma: int, count: int, random: SecureRandom) -> tuple[np.ndarray, np.ndarray]:
    """Return discrete Laplace numbers of scale σ, and which become Gaussian ones (algorithm 3, t = σ).

    Accepted is Y with probability exp(-(|Y| - σ)²/2σ²). With |(|Y| - σ)| = mσ + r this is
    exp(-1/2)^(m²) · exp(-r/σ)^m · exp(-r²/2σ²), factors of ratios below 1.
    """
    values = _laplace(sigma, count, random)
    distance = np.abs(np.abs(values) - sigma)
    whole, rest = distance // sigma, distance % sigma

    def half(places: np.ndarray) -> np.ndarray:
        return random.below(2, len(places)) == 0

    def linear(places: np.ndarray) -> np.ndarray:
        return random.below(sigma, len(places)) < rest[places]

    def square(places: np.ndarray) -> np.ndarray:
        both = linear(places)
        for step in (linear, half):
            both &= step(places)
        return both

    accepted = _repeated_exp(whole * whole, half, random)
    accepted &= _repeated_exp(np.where(accepted, whole, 0), linear, random)
    return values, accepted & _repeated_exp(accepted.astype(np.int64), square, random)


def _laplace(scale: int, count: int, random: SecureRandom) -> np.ndarray:
    """Return int64 (count,), each x with probability proportional to exp(-|x|/scale) (algorithm 2)."""
    out = np.empty(count, dtype=np.int64)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        rest = random.below(scale, size)
        accepted = _exp_minus(lambda places: random.below(scale, len(places)) < rest[places], size, random)
        value = rest + scale * _geometric(size, random)
        negative = random.below(2, size) == 0
        return np.where(negative, -value, value), accepted & ~(negative & (value == 0))

    _until(out, draw)
    return out


def _geometric(count: int, random: SecureRandom) -> np.ndarray:
    """Return how many draws of probability exp(-1) succeed before one fails, int64 (count,)."""
    successes, going = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(going):
        going = going[_exp_minus(lambda places: np.ones(len(places), dtype=bool), len(going), random)]
        successes[going] += 1
    return successes


def _repeated_exp(times: np.ndarray, flip: Flip, random: SecureRandom) -> np.ndarray:
    """Return bool: whether `times` draws of probability exp(-γ) all succeed; `flip` has γ of each place."""
    alive = np.ones(len(times), dtype=bool)
    left = times.copy()
    while len(places := np.flatnonzero(alive & (left > 0))):
        alive[places] = _exp_minus(lambda inner: flip(places[inner]), len(places), random)
        left[places] -= 1
    return alive


def _exp_minus(flip: Flip, count: int, random: SecureRandom) -> np.ndarray:
    """Return bool (count,), each true with probability exp(-γ) for γ in [0, 1] (algorithm 1).

    K is how often draws of probability γ/1, γ/2, γ/3 ... succeed, and one that fails; exp(-γ) is the
    probability that K is odd.

    Args:
        flip: draws with probability γ for the given places.
    """
    odd, going, number = np.ones(count, dtype=bool), np.arange(count), 1
    while len(going):
        hit = random.below(number, len(going)) == 0  # with probability 1/number
        hit[hit] = flip(going[hit])
        going = going[hit]
        odd[going] ^= True
        number += 1
    return odd
