# SPDX-License-Identifier: Apache-2.0
"""Epsilon of steps of DP-SGD, by the accountants of Opacus.

`rdp` is a bound by Renyi divergences (Mironov 2017; subsampled: Mironov, Talwar and Zhang 2019), `prv`
follows the distribution of the privacy loss numerically (Gopi, Lee and Wutschitz 2021), a tenth tighter.
Neighbouring data sets differ by one patient, who is there or not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Literal

from medflare.core.errors import ConfigError
from medflare.core.patient_privacy import Mechanism

Accountant = Literal["rdp", "prv"]
WITHOUT = (
    "differential privacy needs the package opacus, which is not installed here: pip install 'medflare[dp]'."
)


def epsilon(done: Iterable[Mechanism], delta: float, accountant: Accountant = "rdp") -> float:
    """Return the epsilon at `delta` of everything in `done` together; 0 of nothing, inf where there is none.

    Raises:
        ConfigError: delta is no probability, or opacus is missing.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}; expected a number between 0 and 1.")
    history = [(item.noise, item.rate, item.steps) for item in done if item.steps]
    if not history:
        return 0.0
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ModuleNotFoundError:
        raise ConfigError(WITHOUT) from None
    book = RDPAccountant() if accountant == "rdp" else PRVAccountant()
    book.history = history
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        try:
            found = float(book.get_epsilon(delta))
        except (OverflowError, MemoryError, ValueError, RuntimeError):
            return math.inf  # so little noise that the accountant's numbers end
    return found if math.isfinite(found) and found >= 0 else math.inf


def noise_for(
    target: float, delta: float, rate: float, steps: int, accountant: Accountant = "rdp", digits: float = 1e-3
) -> float:
    """Return the smallest noise multiplier, to `digits`, whose `steps` have an epsilon of at most `target`.

    Raises:
        ConfigError: no noise up to 10,000 reaches it.
    """

    def spent(noise: float) -> float:
        return epsilon([Mechanism(noise=noise, rate=rate, steps=steps)], delta, accountant)

    low, high = 0.0, 1.0
    while spent(high) > target:
        low, high = high, 2 * high
        if high > 1e4:
            raise ConfigError(
                f"no noise reaches an epsilon of {target:g} in {steps} steps at a sample rate of {rate:g} "
                f"and delta {delta:g}; expected fewer steps, a smaller rate or a larger epsilon."
            )
    while high - low > digits:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > target else (low, middle)
    return high
