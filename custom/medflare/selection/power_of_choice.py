# SPDX-License-Identifier: Apache-2.0
"""Power-of-choice: of d candidates drawn by data, the m with the highest loss train.

Source: Cho, Wang and Joshi, Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020 (arXiv 2010.01243), section 4; here the variant rpow-d, which takes the loss of a
candidate's last training instead of asking all candidates anew, so that no message is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from medflare.aggregation.base import RuleFacts
from medflare.selection.latency import Latencies
from medflare.selection.loss_mean import LossSelectedMean, LossSettings
from medflare.selection.sampled_mean import MAX_SAMPLES
from medflare.selection.sampling import Sample
from medflare.selection.selectors import Selector, SiteStatistics, require_sites


@dataclass
class PowerOfChoiceSelector(Selector):
    """Draws candidates without replacement by d_i and keeps those of the highest last loss; weights 1/m.

    A site that never trained has an infinite loss. Of candidates with the same loss the one drawn first
    trains.

    Args:
        clients: m. candidates: d, at least m.
    """

    clients: int = 5
    candidates: int = 10

    def choose(
        self,
        round_number: int,
        shares: Mapping[str, float],
        known: SiteStatistics,
        random: np.random.Generator,
        min_clients: int = 1,
    ) -> Sample:
        require_sites(shares, min_clients)
        sites = sorted(shares)
        wanted = min(max(self.clients, min_clients), len(sites))
        odds = np.array([shares[site] for site in sites])
        drawn = random.choice(
            len(sites), max(wanted, min(self.candidates, len(sites))), False, odds / odds.sum()
        )
        ranked = sorted((sites[i] for i in drawn), key=lambda site: -known.losses.get(site, math.inf))
        chosen = ranked[:wanted]
        return Sample(
            counts=dict.fromkeys(chosen, 1),
            weights=dict.fromkeys(chosen, 1 / len(chosen)),
            probabilities={site: float(site in chosen) for site in sites},
        )


class PowerOfChoice(LossSelectedMean):
    """Plain mean of the m candidates with the highest loss; biased to sites that the model fits badly."""

    facts = RuleFacts(
        summary="Power-of-choice: of some sites drawn by data, those with the highest training loss train.",
        source="Cho, Wang and Joshi 2020 (rpow-d); DD-16",
        needs="individual",
        instead="rule 'ddcs' or 'uniform_selection', which read no losses",
    )

    class Settings(LossSettings):
        candidates: int = Field(default=10, ge=1, le=MAX_SAMPLES)
        """d, sites drawn by data of which `clients` train; as many as `clients` draws by data alone."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self.settings
        if given.candidates < given.clients:
            raise ValueError(
                f"candidates is {given.candidates}, and {given.clients} of them must train. Set "
                f"candidates to {given.clients} or more."
            )
        self.set_selector(PowerOfChoiceSelector(given.clients, given.candidates), Latencies())
