# SPDX-License-Identifier: Apache-2.0
"""Estimates of each site's seconds in a round from those observed: computing and transfer (6.2, DD-9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from medflare.core.errors import ConfigError
from medflare.core.timing import Timing

QUANTILES = (0.5, 0.9)


@dataclass(slots=True)
class _History:
    """Of one site: exponential means, and the last observations."""

    compute: float
    transfer: float
    recent: list[Timing]


class Latencies:
    """Estimates of t_i.

    Args:
        smoothing: weight of the newest round in the exponential means, in (0, 1].
        quantile: None to plan with the means; q to plan with that quantile of the last `window` rounds,
            which holds against sites that are slow now and then.
    """

    def __init__(self, smoothing: float = 0.3, quantile: float | None = None, window: int = 20) -> None:
        faults = []
        if not 0 < smoothing <= 1:
            faults.append(f"smoothing is {smoothing}; expected more than 0 and at most 1")
        if quantile is not None and not 0 <= quantile <= 1:
            faults.append(f"quantile is {quantile}; expected 0 to 1")
        if window < 1:
            faults.append(f"window is {window}; expected 1 or more")
        if faults:
            raise ConfigError("latencies: " + "; ".join(faults) + ".")
        self.smoothing, self.quantile, self.window = smoothing, quantile, window
        self._histories: dict[str, _History] = {}

    def observe(self, site: str, timing: Timing) -> None:
        """Take the seconds of a round; ValueError for numbers that cannot be seconds."""
        if not all(math.isfinite(part) and part >= 0 for part in timing) or timing.total <= 0:
            raise ValueError(f"timing of '{site}' is {tuple(timing)}; expected 0 s or more, not both 0.")
        history = self._histories.get(site)
        if history is None:
            self._histories[site] = _History(timing.compute, timing.transfer, [timing])
            return
        history.compute += self.smoothing * (timing.compute - history.compute)
        history.transfer += self.smoothing * (timing.transfer - history.transfer)
        history.recent = [*history.recent, timing][-self.window :]

    def report_timeout(self, site: str, waited: float) -> None:
        """Count a site without an answer in `waited` seconds as computing for at least that long."""
        known = self._histories.get(site)
        transfer = min(known.transfer if known else 0.0, waited)
        compute = max(waited - transfer, known.compute if known else 0.0)
        self.observe(site, Timing(compute, transfer))

    def parts(self, site: str) -> Timing | None:
        """Return the exponential means of a site; None if it was never observed."""
        history = self._histories.get(site)
        return Timing(history.compute, history.transfer) if history else None

    def estimates(self, sites: Iterable[str]) -> dict[str, float]:
        """Return t_i of each site, seconds; the median of the known ones for a site that was never observed.

        Before anything was seen all are 1, which makes DDCS draw by data.
        """
        wanted = sorted(sites)
        known = {site: self._estimate(self._histories[site]) for site in wanted if site in self._histories}
        typical = median(known.values()) if known else 1.0
        return {site: known.get(site, typical) for site in wanted}

    def _estimate(self, history: _History) -> float:
        if self.quantile is None:
            return history.compute + history.transfer
        return float(np.quantile([timing.total for timing in history.recent], self.quantile))

    def report(self) -> dict[str, dict[str, float]]:
        """Return site -> means and quantiles of both parts, seconds, for a run's record."""
        reports: dict[str, dict[str, float]] = {}
        for site, history in sorted(self._histories.items()):
            reports[site] = {"compute": history.compute, "transfer": history.transfer}
            for name in ("compute", "transfer"):
                values = [getattr(timing, name) for timing in history.recent]
                reports[site] |= {f"{name}_q{100 * q:g}": float(np.quantile(values, q)) for q in QUANTILES}
        return reports

    def state_dict(self) -> dict[str, Any]:
        """Return the means and observations as JSON values."""
        return {
            site: {
                "compute": history.compute,
                "transfer": history.transfer,
                "recent": [list(t) for t in history.recent],
            }
            for site, history in self._histories.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._histories = {
            site: _History(kept["compute"], kept["transfer"], [Timing(*timing) for timing in kept["recent"]])
            for site, kept in state.items()
        }
