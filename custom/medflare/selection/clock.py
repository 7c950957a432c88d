# SPDX-License-Identifier: Apache-2.0
"""Simulated time of rounds, computed from a declared latency profile of each site.

With it a comparison of seconds to a target can be repeated to the last digit, and a hundred
hospitals need no hundred processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np

from medflare.core.data_order import derived_seed
from medflare.core.errors import ConfigError
from medflare.core.timing import Timing

MEGABIT = 1e6 / 8
"""Bytes."""


DEMO_PROFILES: dict[str, dict[str, float]] = {
    "site-1": {"seconds_per_example": 0.15, "down": 200.0, "up": 100.0, "jitter": 0.1},
    "site-2": {"seconds_per_example": 0.3, "down": 100.0, "up": 40.0, "jitter": 0.1},
    "site-3": {"seconds_per_example": 0.5, "down": 100.0, "up": 20.0, "jitter": 0.1},
    "site-4": {"seconds_per_example": 0.5, "down": 50.0, "up": 10.0, "jitter": 0.1},
    "site-5": {"seconds_per_example": 1.0, "down": 50.0, "up": 10.0, "jitter": 0.1},
    "site-6": {"seconds_per_example": 2.5, "down": 20.0, "up": 4.0, "jitter": 0.1},
}
"""Six simulated hospitals, fast and slow ones, as jobs write them: fields of `SiteProfile`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProfile:
    """Speed of a simulated site.

    Attributes:
        seconds_per_example: computing, for one pass over one training example.
        down, up: bandwidth, megabits per second.
        overhead: seconds of every round that depend on neither data nor bytes.
        jitter: standard deviation of the logarithm of both times from round to round.
        reliability: probability that the site answers at all in a round in which it was drawn.
    """

    seconds_per_example: float
    down: float
    up: float
    overhead: float = 0.0
    jitter: float = 0.0
    reliability: float = 1.0

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)}; expected more than 0"
            for name in ("seconds_per_example", "down", "up")
            if not 0 < getattr(self, name) < math.inf
        ]
        faults += [
            f"{name} is {getattr(self, name)}; expected 0 or more"
            for name in ("overhead", "jitter")
            if not 0 <= getattr(self, name) < math.inf
        ]
        if not 0 < self.reliability <= 1:
            faults.append(f"reliability is {self.reliability}; expected more than 0 and at most 1")
        if faults:
            raise ConfigError("latency profile: " + "; ".join(faults) + ".")


def read_profiles(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, SiteProfile]:
    """Return site -> profile from a job's settings; ConfigError that names all sites with wrong entries."""
    known, profiles, faults = {item.name for item in fields(SiteProfile)}, {}, []
    needed = {item.name for item in fields(SiteProfile) if item.default is MISSING}
    for site, entry in sorted(declared.items()):
        strange, missing = sorted(set(entry) - known), sorted(needed - set(entry))
        try:
            if strange:
                raise ConfigError(f"unknown keys {', '.join(strange)}; there are {', '.join(sorted(known))}.")
            if missing:
                raise ConfigError(f"lacks {', '.join(missing)}.")
            profiles[site] = SiteProfile(**entry)
        except (ConfigError, TypeError) as error:
            faults.append(f"site '{site}': {error}")
    if faults:
        raise ConfigError("\n".join(faults))
    return profiles


def drawn_profiles(
    sites: list[str], seed: int, spread: float = 0.8, **typical: float
) -> dict[str, SiteProfile]:
    """Return profiles of simulated hospitals: log-normal around `typical`, speed and bandwidth independent.

    Args:
        spread: standard deviation of the logarithm; 0.8 makes the slowest of 20 about 20 times as slow as the
            fastest.
        typical: fields of `SiteProfile`; 0.5 seconds an example, 100 and 20 megabits where not given.
    """
    middle = {"seconds_per_example": 0.5, "down": 100.0, "up": 20.0, "jitter": 0.1} | typical
    profiles = {}
    for site in sites:
        random = np.random.default_rng(derived_seed(seed, "profile", site))
        speed, line = np.exp(spread * random.standard_normal(2))
        changed = {
            "seconds_per_example": middle["seconds_per_example"] * speed,
            "down": middle["down"] * line,
            "up": middle["up"] * line,
        }
        profiles[site] = SiteProfile(**(middle | changed))
    return profiles


class SimulatedClock:
    """Seconds worked out from profiles; nothing waits.

    Args:
        seed: of jitter and reliability, which depend on it, the site and the round alone: two runs that draw
            different sites see the same hospital in the same round.
    """

    def __init__(self, profiles: Mapping[str, SiteProfile], seed: int = 0) -> None:
        self.profiles, self.seed, self.now = dict(profiles), seed, 0.0

    def timing(self, site: str, number: int, examples: int, down: int, up: int) -> Timing | None:
        """Return the seconds that round `number` takes `site`, or None where the site vanishes.

        Args:
            examples: visited, over all passes; down, up: bytes of the messages to and from the site.
        """
        if site not in self.profiles:
            raise ConfigError(
                f"site '{site}' has no latency profile. Profiles: {', '.join(sorted(self.profiles))}."
            )
        profile = self.profiles[site]
        random = np.random.default_rng(derived_seed(self.seed, "timing", site, number))
        slower, farther = np.exp(profile.jitter * random.standard_normal(2))
        if random.random() >= profile.reliability:
            return None
        compute = (profile.overhead + profile.seconds_per_example * examples) * slower
        transfer = (down / (profile.down * MEGABIT) + up / (profile.up * MEGABIT)) * farther
        return Timing(float(compute), float(transfer))

    def advance(self, timings: Mapping[str, Timing | None], deadline: float = math.inf) -> list[str]:
        """Advance the clock by a synchronous round: until the slowest site has answered, or the deadline.

        A vanished site is waited for until the deadline.

        Returns:
            The sites that gave no answer by then.

        Raises:
            ValueError: a site vanished, and there is no deadline.
        """
        late = sorted(s for s, timing in timings.items() if timing is None or timing.total > deadline)
        if late and deadline == math.inf:
            raise ValueError(f"sites {', '.join(late)} never answer, and the round has no deadline.")
        slowest = max((t.total for t in timings.values() if t is not None), default=0.0)
        self.now += deadline if late else slowest
        return late


def seconds_to_target(curve: list[tuple[float, float]], target: float) -> float | None:
    """Return when a curve of (seconds, quality) first reaches `target`; None if it never does."""
    return next((seconds for seconds, quality in curve if quality >= target), None)
