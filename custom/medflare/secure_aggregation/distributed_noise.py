# SPDX-License-Identifier: Apache-2.0
"""Distributed differential privacy of a masked sum: each site adds its part of the noise before its mask.

After Kairouz, Liu and Steinke 2021 (the distributed discrete Gaussian mechanism). Nobody ever sees a sum
without noise: a site clips its packed update in L2, rounds at random, looks at the norm again, and adds a
discrete Gaussian of variance σ²/(t - c). At least t sites are in an opened sum, and where c of them tell the
server their noise, the rest still carry σ². What is hidden is one site's whole update; who takes part is
known, so no sampling helps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.secure_random import SecureRandom
from medflare.secure_aggregation.discrete_gaussian import MOST_SIGMA, discrete_gaussian
from medflare.secure_aggregation.fixed_point import Ring

BETA = math.exp(-0.5)
"""Random rounding is repeated while the norm is beyond what this share of draws exceeds at most."""
LEAST_SIGMA = 16
"""Smallest σ of a site in steps of the ring. From here on a sum of discrete Gaussians is a discrete Gaussian
but for exp(-π² · 256), which no accountant sees."""
TAIL = 12
"""Deviations of a site's noise that must lie within the bound: beyond are exp(-72) of all values."""


@dataclass(frozen=True, slots=True)
class SumNoise:
    """Noise of one site in one round, in steps of the ring.

    Attributes:
        clip: norm to which an update is shortened. most: norm that its rounded form may have: what the sum
            changes by at most where one site's update is zero instead. (Where it is another one, the sum
            changes by twice as much, so epsilon is that of half the noise.)
        sigma: of the site's discrete Gaussian.
    """

    clip: float
    most: float
    sigma: int

    @classmethod
    def of(cls, ring: Ring, size: int, clip: float, noise: float, honest: int) -> SumNoise:
        """Return the noise of a site.

        Args:
            size: values of the packed update; clip: norm of an update, in its own units.
            noise: deviation of the honest sites' noise in a sum, in multiples of `most`.
            honest: t - c, sites in every opened sum that tell nobody their noise.

        Raises:
            ConfigError: the ring is too coarse, or the noise does not fit into it.
        """
        scaled = math.ldexp(clip, ring.fraction)
        likely = scaled**2 + size / 4 + math.sqrt(-2 * math.log(BETA)) * (scaled + math.sqrt(size) / 2)
        most = math.sqrt(min((scaled + math.sqrt(size)) ** 2, likely))
        sigma = math.ceil(noise * most / math.sqrt(honest))
        if not LEAST_SIGMA <= sigma <= MOST_SIGMA:
            raise ConfigError(
                f"distributed differential privacy: the noise of a site is {sigma} steps of the ring; "
                f"expected {LEAST_SIGMA} to {MOST_SIGMA}. Set protection_settings.bits to 32, or a smaller "
                "bound."
            )
        if scaled + TAIL * sigma > ring.most:
            raise ConfigError(
                f"distributed differential privacy: clip {clip:g} and {TAIL} deviations of noise "
                f"{math.ldexp(sigma, -ring.fraction):g} are more than the bound of {ring.bound:g}, and the "
                "sum could wrap around. Set a larger protection_settings.bound."
            )
        return cls(scaled, most, sigma)

    def add_to(self, values: Tensor, ring: Ring, random: SecureRandom) -> np.ndarray:
        """Return an update as noisy whole numbers (P,) in steps of the ring.

        Args:
            values: fp32 (P,), all finite.
        """
        exact = np.ldexp(values.double().numpy(), ring.fraction)
        norm = float(np.sqrt(np.square(exact).sum()))
        exact *= min(1.0, self.clip / norm) if norm else 1.0
        return self._rounded(exact, random) + discrete_gaussian(self.sigma, len(exact), random)

    def _rounded(self, exact: np.ndarray, random: SecureRandom) -> np.ndarray:
        """Return whole numbers whose mean is `exact`, drawn again until their norm is at most `most`."""
        below = np.floor(exact)
        # 53 bits are enough: the guarantee rests on the norm, which is looked at afterwards
        part = (exact - below) * 2.0**53
        while True:
            up = (random.words(len(exact)) >> np.uint64(11)).astype(np.float64) < part
            drawn = below.astype(np.int64) + up
            if float(np.square(drawn.astype(np.float64)).sum()) <= self.most**2:
                return drawn
