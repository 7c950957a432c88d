# SPDX-License-Identifier: Apache-2.0
"""Parameters on which sites and server agree before a masked round, and the limits of a site's policy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.distributed_noise import SumNoise
from medflare.secure_aggregation.fixed_point import Ring
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.protocol_bytes import statement

NARROW, WIDE = 32, 64
"""Bits of the two rings; the narrow one may have 16."""
BOUND, WIDE_BOUND = 16.0, float(1 << 30)
"""Defaults: the largest absolute value of a floating tensor's difference, and of a counter, sum or weight."""


def default_threshold(sites: int) -> int:
    """Return the smallest majority: floor(n / 2) + 1."""
    return sites // 2 + 1


@dataclass(frozen=True, kw_only=True)
class RoundParameters:
    """The parameters that all sites and the server agree on for one round.

    Their digest is part of every signature, key and commitment of the round.

    Attributes:
        run_id, round: which round of which run; `round` counts from 0.
        sites: who is asked to take part, in order of name.
        threshold: t; so many sites must answer in every phase, and so many shares give a secret back.
        bound, wide_bound: largest absolute values in the narrow and the wide vector.
        bits: of the narrow ring. With 16 an update takes the bytes of bf16, and needs a bound close above
            its largest value: for 3 sites steps are bound / 5461 at best.
        most_weight: the largest weight a site may have; it sends weight / most_weight times its update.
        weighing: how sites weigh their updates: by examples, tokens, or uniformly.
        idle: whether a site without examples may take part with weight 0.
        work: digest of the state and the plan that every site is sent to train on.
        canary: whether the round is thrown away.
        attempt: 0, and one more each time that a server goes on with the run after a crash: its rounds may
            be joined once in each.
        clip, noise, colluding: of distributed differential privacy (`distributed_noise`): norm of a site's
            update, deviation of the sum's noise in multiples of it, and how many sites may tell theirs; 0, 0
            and 0 without.
        layout: digest of the layout; narrow, wide: lengths P and S of its vectors; weighted: how many of
            the S are weighted means.

    Raises:
        ConfigError: the threshold is no majority, a site stands twice, there are fewer than two, or the rings
            cannot hold weights or bounds.
    """

    run_id: str
    round: int
    sites: tuple[str, ...]
    threshold: int
    most_weight: float
    layout: str
    narrow: int
    wide: int
    weighted: int
    bound: float = BOUND
    wide_bound: float = WIDE_BOUND
    bits: int = NARROW
    weighing: str = "examples"
    idle: bool = False
    work: str = ""
    canary: bool = False
    attempt: int = 0
    clip: float = 0.0
    noise: float = 0.0
    colluding: int = 0

    @classmethod
    def of(
        cls, layout: Layout, *, sites: Iterable[str], threshold: int | None = None, **others: Any
    ) -> RoundParameters:
        """Return the parameters for a layout; `others` are attributes, and the threshold has a default."""
        roster = tuple(sorted(sites))
        return cls(
            sites=roster,
            threshold=default_threshold(len(roster)) if threshold is None else threshold,
            layout=layout.digest,
            narrow=layout.narrow.size,
            wide=layout.wide.size,
            weighted=layout.weighted,
            **others,
        )

    def __post_init__(self) -> None:
        count = len(self.sites)
        problems = []
        if count < 2 or list(self.sites) != sorted(set(self.sites)):
            problems.append(f"sites are {list(self.sites)}; expected two or more names in order, none twice")
        if not count < 2 * self.threshold <= 2 * count:
            problems.append(
                f"threshold is {self.threshold} of {count} sites; expected {default_threshold(count)} to "
                f"{count}: two halves of the sites could otherwise be told different things"
            )
        if not (math.isfinite(self.most_weight) and 0 < self.most_weight <= self.wide_bound):
            problems.append(f"most_weight is {self.most_weight}; expected above 0, up to {self.wide_bound:g}")
        if self.bits not in (16, NARROW):
            problems.append(f"bits is {self.bits}; expected 16 or {NARROW}")
        if problems:
            raise ConfigError(f"secure aggregation: {'; '.join(problems)}.")
        for bits, bound in ((self.bits, self.bound), (WIDE, self.wide_bound)):
            Ring(bits, bound, count)
        if self.noise or self.clip or self.colluding:
            self._check_noise()

    def _check_noise(self) -> None:
        """Refuse noise that would hide nothing, or a sum that holds what has none."""
        problems = []
        if not (0 < self.clip < math.inf and 0 < self.noise < math.inf):
            problems.append(f"clip is {self.clip} and noise {self.noise}; expected positive numbers")
        if not 0 <= self.colluding < self.threshold:
            problems.append(
                f"{self.colluding} sites may tell their noise, of a threshold of {self.threshold}; "
                "expected fewer"
            )
        if self.weighing != "uniform" or self.most_weight != 1 or self.idle:
            problems.append(
                f"updates are weighed by {self.weighing}; a weight that depends on data has no noise: set "
                'the rule\'s weighting to "uniform"'
            )
        if self.wide:
            problems.append(
                f"{self.wide} counters or sums would travel without noise; take a rule without them"
            )
        if problems:
            raise ConfigError(f"distributed differential privacy: {'; '.join(problems)}.")
        assert self.sum_noise is not None  # computes it, and with it the check of the ring

    @cached_property
    def sum_noise(self) -> SumNoise | None:
        """Noise of one site; None without differential privacy."""
        if not self.noise:
            return None
        return SumNoise.of(
            self.narrow_ring, self.narrow, self.clip, self.noise, self.threshold - self.colluding
        )

    @cached_property
    def narrow_ring(self) -> Ring:
        """Z_2^32, or Z_2^16, for floating tensors."""
        return Ring(self.bits, self.bound, len(self.sites))

    @cached_property
    def wide_ring(self) -> Ring:
        """Z_2^64 for counters, sums and the weight."""
        return Ring(WIDE, self.wide_bound, len(self.sites))

    @cached_property
    def digest(self) -> str:
        """Return the sha256 over everything, the rings' widths and points included, in hex."""
        rings = [[ring.bits, ring.fraction] for ring in (self.narrow_ring, self.wide_ring)]
        return hashlib.sha256(statement("terms", rings=rings, **self.to_json())).hexdigest()

    def index(self, site: str) -> int:
        """Return a site's index among the shares, from 1."""
        return self.sites.index(site) + 1

    def errors(self, weight: float) -> tuple[float, float, float]:
        """Return the largest quantisation errors: of narrow means, of wide means, and of sums.

        weight: sum of the weights of the sites that took part. Rounding comes on top: 2^-23 of the value in
        the narrow vector (fp32), 2^-50 in the wide one (float64).
        """
        factor = self.most_weight / weight
        return self.narrow_ring.error * factor, self.wide_ring.error * factor, self.wide_ring.error

    def to_json(self) -> dict[str, Any]:
        """For the request to a site, and for run.json."""
        return {**asdict(self), "sites": list(self.sites)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RoundParameters:
        """Return the parameters that `to_json` wrote."""
        return cls(**{**data, "sites": tuple(data["sites"])})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a site's own policy, which hold whatever a job says.

    Attributes:
        min_sites: smallest number of sites in a sum it takes part in. With two, either of them can take its
            own update out of the sum and has the other's.
        min_threshold: smallest threshold; t of n withstands a server that lies together with up to
            2t - n - 1 sites (docs/explanation/masking_protocol.md).
        partners: the only sites it shares a round with; None for any with a certificate of the project.
        min_noise: smallest noise of a sum of updates, as `RoundParameters.noise`; None demands none.
    """

    min_sites: int = 3
    min_threshold: int = 2
    partners: frozenset[str] | None = None
    min_noise: float | None = None

    def problem(self, parameters: RoundParameters, site: str) -> str | None:
        """Return why a site with this policy cannot agree to the parameters, or None."""
        if site not in parameters.sites:
            return f"'{site}' is not among the sites {', '.join(parameters.sites)}"
        if len(parameters.sites) < self.min_sites:
            return (
                f"{len(parameters.sites)} sites take part, this site's policy asks for "
                f"{self.min_sites} or more"
            )
        if parameters.threshold < self.min_threshold:
            return (
                f"the threshold is {parameters.threshold}, this site's policy asks for {self.min_threshold}"
            )
        welcome = set(parameters.sites) if self.partners is None else self.partners | {site}
        strangers = sorted(set(parameters.sites) - welcome)
        if strangers:
            return f"{', '.join(strangers)} may not take part by this site's policy"
        if self.min_noise is not None and parameters.narrow and parameters.noise < self.min_noise:
            return (
                f"the sum of updates has noise of {parameters.noise:g} times a site's norm, this site's "
                f"policy asks for {self.min_noise:g}"
            )
        return None
