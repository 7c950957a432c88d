# SPDX-License-Identifier: Apache-2.0
"""Shared part of all learners: declared tensors, received state, delta, client terms, data position.

A method implements `live` (its shared tensors) and the rest of `core.learner.Learner`; everything here can be
overridden where a method's tensors need more than a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from medflare.core.data_order import DataOrder, derived_seed, examples_to_visit
from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.learner import PatientProfiles
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.learners.client_terms import ClientTerms, requested_sums
from medflare.learners.client_terms.base import Shared


class BaseLearner(ABC):
    """Local training of one method at one site; one object lives for all rounds of a run.

    Args:
        site: name of the site.
        seed: of the run.
        examples: training examples, whose order over the rounds is kept in `order`.

    Attributes:
        terms: what the run's aggregation rule asks of local training.
        order: which training examples the rounds have visited.
        scorers: optional scorer -> the site's own folder of its weights, for the final test of texts.
        fewest: examples without which nothing may leave the site (its policy's `min_examples`).
    """

    scorers: Mapping[str, str | Path] = MappingProxyType({})
    fewest: int = 1

    def __init__(self, site: str, seed: int, examples: int = 0) -> None:
        self.site, self.seed = site, seed
        self.order = DataOrder(max(examples, 1), derived_seed(seed, site, "order"))
        self.terms = ClientTerms(site, self.live)
        self._received: State = {}

    # ---- what a method adds ------------------------------------------------------------------------------

    @abstractmethod
    def live(self) -> Shared:
        """Return the communicated tensors themselves, by name; everything else is local for ever."""

    @abstractmethod
    def describe(self) -> SiteDescription:
        """Return the facts that sites and server exchange before round 1."""

    @abstractmethod
    def fit(self, plan: RoundPlan) -> Update:
        """Train one round from the state loaded last."""

    @abstractmethod
    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        """Return aggregate metrics of a split with the state loaded last."""

    @abstractmethod
    def metric_names(self) -> MetricNames:
        """Return the names of what `evaluate` and `finish` measure."""

    @abstractmethod
    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        """Return the final test quality, and write into `folder` what stays at the site."""

    @property
    def patient_profiles(self) -> PatientProfiles | None:
        """The profiles of the site's patients; None for a method that makes none."""
        return None

    @property
    def patient_privacy(self) -> PatientPrivacy | None:
        """Facts of differentially private training; None for a method, or a job, without it."""
        return None

    # ---- the state that sites share ----------------------------------------------------------------------

    @cached_property
    def _spec(self) -> SharedSpec:
        return {name: (tuple(t.shape), t.dtype) for name, t in self.initial_shared().items()}

    def shared_spec(self) -> SharedSpec:
        """Return names, shapes and dtypes of what may leave; the same for the whole run."""
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        """Return what the auxiliary sums of an update are like when `sites` sites take part."""
        return {}

    def requested_sums(self, hints: RoundHints) -> SharedSpec:
        """Return what the sums are like that a rule's hints ask of the client terms."""
        return requested_sums(self.terms, hints)

    def initial_shared(self) -> State:
        """Return CPU copies of the communicated tensors as they are now."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.live().items()}

    def load_shared(self, state: State) -> None:
        """Put the server's state in place and remember it for `delta`.

        Raises:
            UpdateError: a name is unknown or missing, a shape differs, or a value is not finite; nothing has
                changed then.
        """
        check_state(state, self._spec, f"site '{self.site}': the server's state")
        self._put_shared(state)
        self._received = self.initial_shared()

    @torch.no_grad()
    def _put_shared(self, state: State) -> None:
        """Copy a checked state into the live tensors."""
        for name, tensor in self.live().items():
            tensor.copy_(state[name])

    def delta(self) -> State:
        """Return the communicated tensors minus their received values, in fp32."""
        now = self.initial_shared()
        return {name: now[name].float() - self._received[name].float() for name in now}

    # ---- training ----------------------------------------------------------------------------------------

    def round_examples(
        self, plan: RoundPlan, size: int, batch: int, epochs: int, record: str = "example"
    ) -> list[int]:
        """Return the positions, in [0, size), of the training examples that a round visits.

        Args:
            size: training examples of the site.
            batch: examples of one optimiser step.
            epochs: passes, where the plan asks for neither steps nor a fraction.
            record: the word for an example in the error.

        Raises:
            UpdateError: the site has no training example.
        """
        if not size:
            raise UpdateError(
                f"site '{self.site}' has no training {record}; look with `medflare cohort inspect`."
            )
        return self.order.take(examples_to_visit(plan, size, batch, epochs))

    # ---- what stays --------------------------------------------------------------------------------------

    def local_state(self) -> tuple[State, dict[str, Any]]:
        """Return what must survive a restart (tensors, JSON values) and never leaves."""
        return self.terms.state(), {"position": self.order.position}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Put back what `local_state` returned."""
        self.order.position = int(values["position"])
        self._restore(self.terms.restore(dict(tensors)))

    def _restore(self, tensors: State) -> None:  # noqa: B027 - many methods keep no tensors of their own
        """Put back the method's own local tensors."""


def require_finite(loss: Tensor, *, setting: str, records: str, site: str) -> None:
    """Refuse a loss that is not finite, before it moves anything.

    Args:
        setting: the learning rate's name in a job.
        records: what may be odd: "images" or "notes".

    Raises:
        UpdateError: the loss is NaN or infinite; nothing of the round is kept.
    """
    if torch.isfinite(loss):
        return
    command = "medflare cohort inspect --images" if records == "images" else "medflare cohort inspect"
    raise UpdateError(
        f"site '{site}': the loss is {loss.item()}; nothing of this round was kept. Lower {setting}, or "
        f"look for odd {records} with `{command}`."
    )


def in_parts(rows: list[int], size: int) -> list[list[int]]:
    """Cut rows into consecutive parts of at most `size`."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
