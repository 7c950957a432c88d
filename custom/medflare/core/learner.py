# SPDX-License-Identifier: Apache-2.0
"""The protocol between local training and whatever moves tensors between sites.

A learner trains one task at one site and knows nothing about federation. It declares which tensors are
communicated; everything else is local for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from medflare.core.hints import MixtureHint, RoundHints
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.patient_privacy import PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update


class PatientProfiles(Protocol):
    """A site's side of the mixture that sites fit to their patients' profiles (FedTAR); only sums leave."""

    def profile_sums(self) -> State:
        """Return the sums that a site sends before the first iteration."""
        ...

    def mixture_sums(self, mixture: MixtureHint) -> State:
        """Return the sums that a site sends in an iteration.

        Raises:
            UpdateError: this is no mixture of the site's profiles.
        """
        ...

    def take_mixture(self, mixture: MixtureHint) -> None:
        """Keep the mixture that patients are assigned to from now on.

        Raises:
            UpdateError: this is no mixture of the site's profiles.
        """
        ...


class Learner(Protocol):
    """Local training of one method at one site.

    Attributes:
        scorers: optional scorer -> the site's own folder of its weights, put there once it is built.
        fewest: examples without which nothing may leave the site, put there too; the site checks an update
            and an evaluation itself, and the learner numbers about a part of their examples.
    """

    scorers: Mapping[str, str | Path]
    fewest: int

    @property
    def patient_profiles(self) -> PatientProfiles | None:
        """The profiles of the site's patients; None for a method, or a variant of it, that has none."""
        ...

    @property
    def patient_privacy(self) -> PatientPrivacy | None:
        """Facts of differentially private training, for the site's account; None where it is not private."""
        ...

    def describe(self) -> SiteDescription:
        """Return the facts that sites and server exchange before round 1."""
        ...

    def shared_spec(self) -> SharedSpec:
        """Return names, shapes and dtypes of the tensors that may leave; fixed before round 1."""
        ...

    def sums_spec(self, sites: int) -> SharedSpec:
        """Return the same of an update's auxiliary sums when `sites` sites take part; often empty."""
        ...

    def requested_sums(self, hints: RoundHints) -> SharedSpec:
        """Return the same of the auxiliary sums that a rule's hints ask for.

        Raises:
            ConfigError: the method cannot do what the hints ask for.
        """
        ...

    def metric_names(self) -> MetricNames:
        """Return the names of what `evaluate` and `finish` measure; fixed before round 1."""
        ...

    def initial_shared(self) -> State:
        """Return the shared tensors before round 1: public weights and a seed, nothing of a patient."""
        ...

    def load_shared(self, state: State) -> None:
        """Put the server's state in place.

        Raises:
            UpdateError: a name is unknown or missing, a shape differs, or a value is not finite.
        """
        ...

    def fit(self, plan: RoundPlan) -> Update:
        """Train from the state loaded last.

        Raises:
            UpdateError: the loss is not finite, or there is nothing to train on; local state is as before.
        """
        ...

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        """Return aggregate metrics of a split with the state loaded last; they may leave the site.

        Their `examples` are what was really counted, whatever the plan asked for.
        """
        ...

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        """Return the final test quality of each adapter (aggregates, which may leave).

        Args:
            folder: gets what stays at the site for ever: personalised adapter, test predictions.
        """
        ...

    def local_state(self) -> tuple[State, dict[str, Any]]:
        """Return what must survive a restart (tensors, JSON values) and never leaves."""
        ...

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Put back what `local_state` returned."""
        ...
