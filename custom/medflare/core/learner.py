# SPDX-License-Identifier: Apache-2.0
"""The protocol between local training and whatever moves tensors between sites.

A learner trains one task at one site and knows nothing about federation. It declares which tensors are
communicated; everything else is local for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update


class Learner(Protocol):
    """Local training of one method at one site."""

    def describe(self) -> SiteDescription:
        """Return the facts that sites and server exchange before round 1."""
        ...

    def shared_spec(self) -> SharedSpec:
        """Names, shapes and dtypes of what may leave; fixed before round 1."""
        ...

    def sums_spec(self, sites: int) -> SharedSpec:
        """What the auxiliary sums of an update are like when `sites` sites take part; often empty."""
        ...

    def initial_shared(self) -> State:
        """Values of the shared tensors before round 1: public weights and a seed, nothing of a patient."""
        ...

    def load_shared(self, state: State) -> None:
        """Takes the server's state; raises UpdateError on unknown or missing names, shapes, non-finite."""
        ...

    def fit(self, plan: RoundPlan) -> Update:
        """Trains from the state loaded last."""
        ...

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        """Numbers on one split with the state loaded last; may leave the site, so no per-patient value."""
        ...

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        """After the last round: final test quality of each adapter (aggregates, which may leave), and into
        `folder` what stays at the site for ever (personalised adapter, test predictions)."""
        ...

    def local_state(self) -> tuple[State, dict[str, Any]]:
        """What must survive a restart (tensors, JSON values) and never leaves."""
        ...

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        """Puts back what `local_state` returned."""
        ...
