# SPDX-License-Identifier: Apache-2.0
"""FedTAR's temporal residual aggregation: T exchanges a round, one for each visit (FedTAR Eq. 7 to 9).

Sites send T numbers a round, ⟨g_k, w_t − w_{t-1}⟩ with g_k the gradient of their own validation loss at w_T.
They ride on the first exchange of the next round as auxiliary sums, and nothing else is needed for the exact
meta-gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from medflare.aggregation.base import RuleFacts, Weighting
from medflare.aggregation.capabilities import (
    AcceptsZeroWeight,
    CountsAbortedRounds,
    SendsHints,
    TrainsVisits,
    UsesAuxiliarySums,
)
from medflare.aggregation.coefficients import AlphaMode, Embedding, Schedule, alpha_gradient, convex_weights
from medflare.aggregation.norm_clip import NormClipSettings
from medflare.aggregation.weighted_mean import MeanRule
from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints, VisitHint
from medflare.core.idle_settings import idle_if
from medflare.core.optimiser_state import moments, restore_moments
from medflare.core.tensors import State, apply_delta_in_place
from medflare.core.update import Update
from medflare.core.visit_sums import EXAMPLES, LARGEST, PATIENTS, SLOPES, VISITS, YEARS

ADAM = "adam"


class TemporalResidual(
    MeanRule, SendsHints, UsesAuxiliarySums, CountsAbortedRounds, AcceptsZeroWeight, TrainsVisits
):
    """w_t = w_{t-1} + α_t Σ_k p_k Δ_k for the visits t = 1..T of a round, p_k = n_{k,t} / Σ n_{k,t} (TAR-1,
    TAR-2).

    A site without examples of a visit sends an update of 0 examples, which takes no part in the mean; a visit
    that no site has leaves the state as it is. With T = 1 and softmax this is FedAvg to the last bit.
    """

    facts = RuleFacts(
        summary="FedTAR: one exchange a visit, each a step of learnt length towards the mean; "
        "needs only sums.",
        source="FedTAR (paper 001); TAR-1, TAR-2, TAR-3, TAR-6",
        reads_sum=True,
    )
    auxiliary_sums = (VISITS,)

    class Settings(NormClipSettings):
        visits: int = Field(default=1, ge=1)
        """T, exchanges a round."""
        alpha_mode: AlphaMode = "softmax"
        """how α comes from ψ: "softmax" over the visits as in the paper, "sigmoid" for each visit,
        "beta_softmax" over the weights that w_0 and the visits have in w_T, or "constant"."""
        alpha: float = Field(default=1.0, ge=0, le=1)
        """α_t of every visit with "constant"; 1 is FedAvg over one visit after the other."""
        embedding: Embedding = "visit"
        """what α_t is a function of: "visit" its number, "days" the time that passed."""
        lr: float = Field(default=1e-4, ge=0)
        """of AdamW on ψ; 0 leaves ψ as it is."""
        seed: int = Field(default=0, ge=0)
        """of ψ's first values."""
        weighting: Weighting = "examples"
        """as in `WeightedMean`."""
        start: float = Field(default=0.5, gt=0, lt=1)
        """α_t of every visit with "sigmoid" before anything was learnt. Near 1 the model learns as fast as by
        FedAvg; the 1/T of "softmax" is a server's learning rate of 1/T."""

        @property
        def without_effect(self) -> dict[str, str]:
            mode, why = self.alpha_mode, f"alpha_mode is '{self.alpha_mode}'"
            return idle_if(
                (mode == "constant", why, "embedding lr seed"),
                (mode != "constant", why, "alpha"),
                (mode != "sigmoid", why, "start"),
            )

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self.settings
        self.set_weighting(given.weighting)
        self.visits, self.embedding = given.visits, given.embedding
        self.schedule = Schedule(
            given.visits, given.alpha_mode, given.embedding, given.seed, given.alpha, given.start
        )
        psi = list(self.schedule.parameters())
        # softmax over one visit is 1 whatever ψ is: there is nothing to learn
        learns = bool(psi and given.lr) and (given.visits > 1 or given.alpha_mode != "softmax")
        self._optimiser = torch.optim.AdamW(psi, lr=given.lr, weight_decay=0.0) if learns else None
        self.round, self.visit = 0, 0
        self.alpha = self.schedule().detach()
        self.stepped = torch.zeros(self.visits, dtype=torch.bool)
        """(T,): the visits of this round in which somebody had examples."""
        self._sums: State = {}
        self._empty_updates = 0
        self._meta: dict[str, Any] = {}

    def metrics_read(self) -> tuple[str, ...]:
        """Return also `visit`, of which visit an update is, where there is more than one."""
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
        self._sums, self._empty_updates = {}, 0

    def weight(self, site: str, update: Update) -> float:
        return super().weight(site, update) if update.examples else 0.0

    def add(self, site: str, update: Update) -> None:
        visit = update.metrics.get("visit", self.visit + 1)
        if self.visits > 1 and visit != self.visit + 1:
            raise UpdateError(f"the update is of visit {visit:g}, expected visit {self.visit + 1}")
        if update.examples:
            super().add(site, update)
        else:
            self._empty_updates += 1
        sums = {name: value.double() for name, value in update.sums.items() if name.startswith(VISITS)}
        if not slopes_within_bounds(sums):
            sums = {name: value for name, value in sums.items() if name not in (SLOPES, EXAMPLES)}
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def finish(self) -> State:
        """Return w_t = w_{t-1} + α_t Σ_k p_k Δ_k; a copy of w_{t-1} where no site has the visit.

        The first exchange of a round brings the slopes of the round before, so the meta step on ψ comes
        first and this round's α is made by the new ψ. Only then is α_t known, with which the mean is scaled.
        An exchange of nothing but empty updates takes no step, but its visit counts; one without any update
        is an error of the caller, as in `mean`.
        """
        has_examples = bool(self._weights)
        change = self.mean() if has_examples or not self._empty_updates else {}
        if self.visit == 0:
            self._start_round()
        step = float(self.alpha[self.visit])
        for name, value in change.items():
            change[name] = value.mul_(step)
        self._close_visit(has_examples)
        if not has_examples:
            self._shares, self._sum = {}, {}
            return {name: value.clone() for name, value in self._global.items()}
        return apply_delta_in_place(self._global, change)

    def abort_round(self) -> None:
        """Close an exchange whose updates could not be read: its visit took no step, its sums are lost.

        The visits go on as the sites count them. Where it was the first of a round, that round still needs
        its α, without a meta step for the round before, whose slopes were lost with the sums.
        """
        self._sums = {}
        if self.visit == 0:
            self._start_round()
        self._close_visit(False)

    def _close_visit(self, stepped: bool) -> None:
        """Go on to the next visit, and after the last one to the next round."""
        self.stepped[self.visit] = stepped
        self._meta["visit"] = self.visit + 1
        self.visit = (self.visit + 1) % self.visits
        self.round += self.visit == 0

    def update_server_state(self, totals: State, sites: int) -> State:
        return {name: value for name, value in totals.items() if not name.startswith(VISITS)}

    # ---- one round ---------------------------------------------------------------------------------------

    def _start_round(self) -> None:
        """Take the meta step for the round before, then compute α of this one."""
        self._meta = {}
        slopes, examples = self._sums.get(SLOPES), self._sums.get(EXAMPLES)
        if (
            self._optimiser is not None
            and slopes is not None
            and examples is not None
            and float(examples) > 0
        ):
            self._meta_step(slopes / examples)
        self._update_years()
        self.alpha = self.schedule().detach()
        self.stepped = torch.zeros(self.visits, dtype=torch.bool)

    def _meta_step(self, slopes: Tensor) -> None:
        """ψ ← AdamW(∂L_val/∂ψ). slopes: (T,) mean over the sites' validation examples."""
        assert self._optimiser is not None
        gradient = alpha_gradient(self.alpha, slopes, self.stepped)
        self._meta |= {"slopes": slopes.tolist(), "alpha_gradient": gradient.tolist()}
        self._optimiser.zero_grad(set_to_none=True)
        self.schedule().backward(gradient)
        self._optimiser.step()

    def _update_years(self) -> None:
        """Set mean times between visits over all patients; of a visit that nobody had, keep the last ones."""
        years, patients = self._sums.get(YEARS), self._sums.get(PATIENTS)
        if self.embedding == "days" and years is not None and patients is not None:
            mean = years / patients.clamp(min=1)
            self.schedule.years.copy_(torch.where(patients > 0, mean, self.schedule.years))

    def report(self) -> dict[str, Any]:
        """Return `weights`; `visit` and `alpha`, `beta` of the round; after a meta step `slopes` and
        `alpha_gradient`."""
        beta = convex_weights(torch.where(self.stepped, self.alpha, torch.zeros_like(self.alpha)))
        coefficients = {"alpha": self.alpha.tolist(), "beta": beta.tolist(), **self._meta}
        at = (self.visit - 1) % self.visits
        return super().report() | coefficients | {"checks": {"alpha": float(self.alpha[at])}}

    def state_dict(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"round": self.round, "visit": self.visit}
        kept |= {"alpha": self.alpha.clone(), "seen": self.stepped.clone()}
        kept["psi"] = {name: value.clone() for name, value in self.schedule.state_dict().items()}
        if self._optimiser is not None:
            kept[ADAM] = moments(self._optimiser, ADAM)
        return kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["alpha"]) != self.visits:
            raise ValueError(f"the kept state is of {len(state['alpha'])} visits; expected {self.visits}.")
        self.round, self.visit = int(state["round"]), int(state["visit"])
        self.alpha, self.stepped = state["alpha"].clone(), state["seen"].clone()
        self.schedule.load_state_dict(state["psi"])
        if self._optimiser is not None:
            restore_moments(self._optimiser, state.get(ADAM, {}), ADAM)


def slopes_within_bounds(sums: State) -> bool:
    """Return whether slopes are of 0 examples or more and no larger than a site may send."""
    if SLOPES not in sums or EXAMPLES not in sums:
        return True
    examples = float(sums[EXAMPLES])
    return examples >= 0 and float(sums[SLOPES].abs().max()) <= LARGEST * examples * (1 + 1e-9) + 1e-9
