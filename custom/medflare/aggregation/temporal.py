# SPDX-License-Identifier: Apache-2.0
"""FedTAR's temporal residual aggregation: T exchanges a round, one for each visit (algorithms.md 3.2 to 3.4).

Sites tell T numbers a round, ⟨g_k, w_t − w_{t-1}⟩ with g_k the gradient of their own validation loss at w_T.
They ride on the first exchange of the next round as declared sums, and nothing else is needed for the exact
meta-gradient.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.capabilities import (
    AcceptsZeroWeight,
    CountsAbortedRounds,
    SendsHints,
    TrainsVisits,
    UsesAuxiliarySums,
)
from medflare.aggregation.coefficients import (
    ALPHA_MODES,
    EMBEDDINGS,
    AlphaMode,
    Embedding,
    Schedule,
    alpha_gradient,
    convex_weights,
)
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints, VisitHint
from medflare.core.tensors import State, settled
from medflare.core.update import Update
from medflare.learners.fedtar.visit_sums import EXAMPLES, LARGEST, PATIENTS, SLOPES, VISITS, YEARS
from medflare.learners.optim import moments, restore_moments

ADAM = "adam"


class TemporalResidual(
    WeightedMean, SendsHints, UsesAuxiliarySums, CountsAbortedRounds, AcceptsZeroWeight, TrainsVisits
):
    """w_t = w_{t-1} + α_t Σ_k p_k Δ_k for the visits t = 1..T of a round, p_k = n_{k,t} / Σ n_{k,t} (TAR-1,
    TAR-2).

    A site without examples of a visit sends an update of 0 examples, which takes no part in the mean; a visit
    that no site has leaves the state as it is. With T = 1 and softmax this is FedAvg to the last bit.

    Args:
        visits: T, exchanges a round.
        alpha_mode: how α comes from ψ: "softmax" over the visits as in the paper, "sigmoid" for each visit,
            "beta_softmax" over the weights that w_0 and the visits have in w_T, or "constant".
        alpha: α_t of every visit with "constant"; 1 is FedAvg over one visit after the other.
        start: α_t of every visit with "sigmoid" before anything was learnt. Near 1 the model learns as fast
            as by FedAvg; the 1/T of "softmax" is a server's learning rate of 1/T.
        embedding: what α_t is a function of: "visit" its number, "days" the time that passed.
        lr: of AdamW on ψ; 0 leaves ψ as it is.
        seed: of ψ's first values.
        weighting: as in `WeightedMean`.
    """

    summary = "FedTAR: one exchange a visit, each a step of learnt length towards the mean; needs only sums."
    source = "FedTAR (paper 001); algorithms.md 3.2 to 3.4, 10; TAR-1, TAR-2, TAR-3, TAR-6"
    reads_sum = True
    auxiliary_sums = (VISITS,)

    def __init__(
        self,
        visits: Annotated[int, Field(ge=1)] = 1,
        alpha_mode: AlphaMode = "softmax",
        alpha: Annotated[float, Field(ge=0, le=1)] = 1.0,
        embedding: Embedding = "visit",
        lr: Annotated[float, Field(ge=0)] = 1e-4,
        seed: Annotated[int, Field(ge=0)] = 0,
        weighting: Literal["examples", "tokens", "uniform"] = "examples",
        start: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    ) -> None:
        super().__init__(weighting)
        _check(visits, alpha_mode, alpha, embedding, lr, seed, start)
        self.visits, self.alpha_mode, self.embedding = visits, alpha_mode, embedding
        self.schedule = Schedule(visits, alpha_mode, embedding, seed, alpha, start)
        psi = list(self.schedule.parameters())
        learns = bool(psi and lr) and (visits > 1 or alpha_mode != "softmax")
        self._optimiser = torch.optim.AdamW(psi, lr=lr, weight_decay=0.0) if learns else None
        self.round, self.visit = 0, 0
        self.alpha = self.schedule().detach()
        self.seen = torch.zeros(visits, dtype=torch.bool)
        self._told: State = {}
        self._idle = 0
        self._meta: dict[str, Any] = {}

    def metrics_read(self) -> tuple[str, ...]:
        """Sites say of which visit an update is, where there is more than one."""
        return ("visit", *super().metrics_read()) if self.visits > 1 else super().metrics_read()

    def metrics_of_sum(self) -> dict[str, float]:
        return {**super().metrics_of_sum(), "visit": self.visit + 1.0}

    def round_hints(self) -> RoundHints:
        return RoundHints(
            visit=VisitHint(
                round=self.round,
                visit=self.visit + 1,
                visits=self.visits,
                slopes=self._optimiser is not None,
                days=self.embedding == "days",
            )
        )

    # ---- one exchange ------------------------------------------------------------------------------------

    def begin(self, global_state: State) -> None:
        super().begin(global_state)
        self._told, self._idle = {}, 0

    def weight(self, site: str, update: Update) -> float:
        return super().weight(site, update) if update.examples else 0.0

    def add(self, site: str, update: Update) -> None:
        visit = update.metrics.get("visit", self.visit + 1)
        if self.visits > 1 and visit != self.visit + 1:
            raise UpdateError(f"the update is of visit {visit:g}, expected visit {self.visit + 1}")
        if update.examples:
            super().add(site, update)
        else:
            self._idle += 1
        told = {name: value.double() for name, value in update.sums.items() if name.startswith(VISITS)}
        if not bounded(told):
            told = {name: value for name, value in told.items() if name not in (SLOPES, EXAMPLES)}
        for name, value in told.items():
            self._told[name] = self._told[name] + value if name in self._told else value

    def finish(self) -> State:
        found = bool(self._weights)
        change = self.mean() if found or not self._idle else {}
        if self.visit == 0:
            self._open_round()
        step = float(self.alpha[self.visit])
        for name, value in change.items():
            change[name] = value.mul_(step)
        self._go_on(found)
        if not found:
            self._shares, self._sum = {}, {}
            return {name: value.clone() for name, value in self._global.items()}
        return settled(self._global, change)

    def abort_round(self) -> None:
        self._told = {}
        if self.visit == 0:
            self._open_round()
        self._go_on(False)

    def _go_on(self, found: bool) -> None:
        """The visit is over, with an update of somebody or without."""
        self.seen[self.visit] = found
        self._meta["visit"] = self.visit + 1
        self.visit = (self.visit + 1) % self.visits
        self.round += self.visit == 0

    def update_server_state(self, totals: State, sites: int) -> State:
        return {name: value for name, value in totals.items() if not name.startswith(VISITS)}

    # ---- one round ---------------------------------------------------------------------------------------

    def _open_round(self) -> None:
        """The meta step for the round before, then α of this one."""
        self._meta = {}
        told = self._told.get(SLOPES), self._told.get(EXAMPLES)
        if self._optimiser is not None and told[0] is not None and told[1] is not None and float(told[1]) > 0:
            self._step(told[0] / told[1])
        self._take_years()
        self.alpha = self.schedule().detach()
        self.seen = torch.zeros(self.visits, dtype=torch.bool)

    def _step(self, slopes: Tensor) -> None:
        """ψ ← AdamW(∂L_val/∂ψ). slopes: (T,) mean over the sites' validation examples."""
        assert self._optimiser is not None
        gradient = alpha_gradient(self.alpha, slopes, self.seen)
        self._meta |= {"slopes": slopes.tolist(), "alpha_gradient": gradient.tolist()}
        self._optimiser.zero_grad(set_to_none=True)
        self.schedule().backward(gradient)
        self._optimiser.step()

    def _take_years(self) -> None:
        """Mean times between visits over all patients; of a visit that nobody had, the last known ones."""
        years, patients = self._told.get(YEARS), self._told.get(PATIENTS)
        if self.embedding == "days" and years is not None and patients is not None:
            mean = years / patients.clamp(min=1)
            self.schedule.years.copy_(torch.where(patients > 0, mean, self.schedule.years))

    def report(self) -> dict[str, Any]:
        """`weights`; `visit` and `alpha`, `beta` of the round; after a meta step `slopes` and
        `alpha_gradient`."""
        beta = convex_weights(torch.where(self.seen, self.alpha, torch.zeros_like(self.alpha)))
        own = {"alpha": self.alpha.tolist(), "beta": beta.tolist(), **self._meta}
        at = (self.visit - 1) % self.visits
        return super().report() | own | {"checks": {"alpha": float(self.alpha[at])}}

    def state_dict(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"round": self.round, "visit": self.visit}
        kept |= {"alpha": self.alpha.clone(), "seen": self.seen.clone()}
        kept["psi"] = {name: value.clone() for name, value in self.schedule.state_dict().items()}
        if self._optimiser is not None:
            kept[ADAM] = moments(self._optimiser, ADAM)
        return kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["alpha"]) != self.visits:
            raise ValueError(f"the kept state is of {len(state['alpha'])} visits; expected {self.visits}.")
        self.round, self.visit = int(state["round"]), int(state["visit"])
        self.alpha, self.seen = state["alpha"].clone(), state["seen"].clone()
        self.schedule.load_state_dict(state["psi"])
        if self._optimiser is not None:
            restore_moments(self._optimiser, state.get(ADAM, {}), ADAM)


def bounded(told: State) -> bool:
    """Whether slopes are of 0 examples or more and no larger than sites may tell: others are not used."""
    if SLOPES not in told or EXAMPLES not in told:
        return True
    examples = float(told[EXAMPLES])
    return examples >= 0 and float(told[SLOPES].abs().max()) <= LARGEST * examples * (1 + 1e-9) + 1e-9


def _check(visits: int, mode: str, alpha: float, embedding: str, lr: float, seed: int, start: float) -> None:
    """ValueError for a setting that cannot be used."""
    if not visits >= 1:
        raise ValueError(f"visits is {visits}; expected 1 or more.")
    if mode not in ALPHA_MODES:
        raise ValueError(f"alpha_mode is '{mode}'; expected one of {', '.join(ALPHA_MODES)}.")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; expected 0 to 1.")
    if embedding not in EMBEDDINGS:
        raise ValueError(f"embedding is '{embedding}'; expected one of {', '.join(EMBEDDINGS)}.")
    if not 0 <= lr < math.inf:
        raise ValueError(f"lr is {lr}; expected 0 or more.")
    if not seed >= 0:
        raise ValueError(f"seed is {seed}; expected 0 or more.")
    if not 0 < start < 1:
        raise ValueError(f"start is {start}; expected more than 0 and less than 1.")
