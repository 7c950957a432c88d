# SPDX-License-Identifier: Apache-2.0
"""Oort: sites whose data are useful and that are fast enough, with a share of sites never tried.

Source: Lai, Zhu, Madhyastha and Chowdhury, Oort: Efficient Federated Learning via Guided Participant
Selection, OSDI 2021, equation 1 and algorithm 1; constants are those of the authors' program. A site's
statistical utility is n_i times its mean loss: the root mean square over examples, which the paper has, would
want every example's loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.selection.latency import Latencies
from medflare.selection.loss_mean import LossSelectedMean, LossSettings
from medflare.selection.sampling import Sample
from medflare.selection.selectors import Selector, SiteStatistics, require_sites

EXPLORING, DECAY, LEAST_EXPLORING = 0.9, 0.98, 0.2
"""Share of sites never tried: in the first round, its factor from round to round, and its floor."""
CLIP, CUTOFF = 0.95, 0.95
"""Quantile at which utilities are cut, and share of the least chosen utility from which sites are drawn."""
PATIENCE, WIDENING = 20, 0.05
"""Rounds over which the pacer sums utilities, and by how much of the sites it lets more in."""


@dataclass
class OortSelector(Selector):
    """Draws tried sites by utility and adds sites never tried; weights n_k over the chosen ones.

    Args:
        clients: m. penalty: α, exponent of T/t_i for sites slower than the preferred duration T.
        pace: T is this quantile of the sites' seconds; grows where the utility of rounds falls.
    """

    clients: int = 5
    penalty: float = 2.0
    pace: float = 0.3
    gained: list[float] = field(default_factory=list)

    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        require_sites(shares, min_clients)
        wanted = min(max(self.clients, min_clients), len(shares))
        tried = [site for site in sorted(shares) if site in known.losses]
        new = [site for site in sorted(shares) if site not in known.losses]
        times = known.latencies.estimates(shares)
        share = max(EXPLORING * DECAY**round_number, LEAST_EXPLORING)
        exploring = max(min(round(share * wanted), len(new)), wanted - len(tried))
        chosen = self._useful(tried, wanted - exploring, round_number + 1, shares, known, random)
        speeds = np.array([1 / times[site] for site in new])
        chosen += _draw(new, speeds, exploring, random)
        self._keep_pace(sum(shares[site] * known.losses.get(site, 0.0) for site in chosen))
        total = sum(shares[site] for site in chosen)
        return Sample(
            counts=dict.fromkeys(chosen, 1),
            weights={site: shares[site] / total for site in chosen},
            probabilities={site: float(site in chosen) for site in sorted(shares)},
        )

    def _useful(
        self,
        tried: Sequence[str],
        wanted: int,
        now: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
    ) -> list[str]:
        """Draw by utility among the sites of nearly the highest utilities."""
        if not wanted:
            return []
        scores = self.utilities(tried, now, shares, known)
        least = CUTOFF * sorted(scores.values(), reverse=True)[wanted - 1]
        high = [site for site in tried if scores[site] >= least]
        return _draw(high, np.array([scores[site] for site in high]), wanted, random)

    def utilities(
        self, tried: Sequence[str], now: int, shares: Mapping[str, float], known: SiteStatistics
    ) -> dict[str, float]:
        """Return the utility of sites that have trained: of their data, of their age, and of their speed.

        Args:
            now: number of the round, from 1.
        """
        data = np.array([shares[site] * known.losses[site] for site in tried])
        clip, least = np.sort(data)[int(CLIP * len(data))], 0.999 * data.min()
        scores = (np.minimum(data, clip) - least) / max(data.max() - least, 1e-4)
        times = known.latencies.estimates(shares)
        preferred = float(np.quantile(list(times.values()), self.pace))
        result = {}
        for site, score in zip(tried, scores, strict=True):
            last = max(now - 1 - known.staleness.get(site, 0), 1)
            score += math.sqrt(0.1 * math.log(now) / last)
            slow = min(preferred / times[site], 1.0)
            result[site] = float(max(score, 1e-12) * slow**self.penalty)
        return result

    def _keep_pace(self, utility: float) -> None:
        """Prefer longer rounds where the last `PATIENCE` rounds were of less use than those before."""
        self.gained.append(utility)
        if len(self.gained) == 2 * PATIENCE:
            if sum(self.gained[:PATIENCE]) > sum(self.gained[PATIENCE:]):
                self.pace = min(self.pace + WIDENING, 1.0)
            del self.gained[:PATIENCE]

    def state_dict(self) -> dict[str, Any]:
        return {"pace": self.pace, "gained": list(self.gained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pace, self.gained = float(state["pace"]), list(state["gained"])


def _draw(sites: Sequence[str], weights: Any, wanted: int, random: np.random.Generator) -> list[str]:
    """Return so many different sites, drawn one after the other by weight."""
    if not wanted:
        return []
    drawn = random.choice(len(sites), wanted, replace=False, p=weights / weights.sum())
    return [sites[i] for i in drawn]


class Oort(LossSelectedMean):
    """Mean by examples of the sites that Oort chooses; biased to useful and fast ones."""

    facts = RuleFacts(
        summary="Oort: sites of high loss that are fast enough, and a share of sites never tried.",
        source="Lai et al. 2021; DD-16",
        needs="individual",
        instead="rule 'ddcs' or 'uniform_selection', which read no losses",
    )

    class Settings(LossSettings):
        penalty: float = Field(default=2.0, ge=0)
        """α; a site slower than the preferred duration T counts (T/t_i)^α; 0 for speed of no account."""
        pace: float = Field(default=0.3, gt=0, le=1)
        """T is this quantile of the sites' seconds in the first rounds."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self.settings
        self.set_selector(OortSelector(given.clients, given.penalty, given.pace), Latencies())
