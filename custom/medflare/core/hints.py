# SPDX-License-Identifier: Apache-2.0
"""Hints from the server to a site beyond the round's plan: typed values, one model for each purpose.

Hints travel as JSON in the plan; `RoundHints.to_json` holds exactly the members that were set, so that a
digest of the plan depends on nothing else. An unknown key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import UpdateError

STAGES = MOMENTS, STATISTICS = ("moments", "statistics")
"""Exchanges of sums of patients' profiles, in order: `RoundHints.profiles` names one."""


class Hint(BaseModel):
    """Strict and frozen; numbers are finite, and a nested model is read from JSON by its own fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=True, allow_inf_nan=False
    )


MOST_SITES = 1000
"""Most sites of a run."""
MOST_COMPONENTS, MOST_ENTRIES = 256, 1 << 16
"""Largest mixture of profiles."""
BySite = dict[Annotated[str, Field(min_length=1, max_length=128)], float]
MatrixRow = Annotated[list[float], Field(max_length=MOST_ENTRIES)]


class ProximalHint(Hint):
    """FedProx: μ of (μ/2)‖θ − θ_r‖²."""

    mu: float = Field(ge=0)


class ControlVariatesHint(Hint):
    """SCAFFOLD: how a site finds its new control variate (`aggregation.scaffold`)."""

    control: Literal["gradients", "option_2"]


class SnapshotHint(Hint):
    """DRFA: after which share of its steps a site keeps its snapshot; how often each site was sampled."""

    share: float = Field(ge=0, le=1)
    drawn: dict[str, int] = Field(max_length=MOST_SITES)


class ImportanceHint(Hint):
    """Importance weights w_i of the sampled sites, and the largest, by which masked updates are divided."""

    weights: BySite = Field(max_length=MOST_SITES)
    largest: float = Field(gt=0)


class InfluenceHint(Hint):
    """Fed-MedLoRA+, client mode: κ, the clip c, whether n_k counts, and ℓ_ref of the last round."""

    temperature: float = Field(ge=0)
    clip: float = Field(ge=0)
    use_data_size: bool = True
    reference: float | None = None


class VisitHint(Hint):
    """FedTAR: the visit (1 to `visits`) of a round that this exchange trains, and what sites send for it.

    Attributes:
        slopes: ⟨g_k, w_t − w_{t-1}⟩ of the last round; days: times between visits.
    """

    round: int = Field(ge=0)
    visit: int = Field(ge=1)
    visits: int = Field(ge=1)
    slopes: bool
    days: bool


class MixtureHint(Hint):
    """A mixture of J Gaussians over profiles of D entries, to the last bit."""

    weights: list[float] = Field(max_length=MOST_COMPONENTS)
    means: list[MatrixRow] = Field(max_length=MOST_COMPONENTS)
    variances: list[MatrixRow] = Field(max_length=MOST_COMPONENTS)


class RoundHints(Hint):
    """Everything a server may tell a site of a round beside the plan; None or the default where it does not.

    Attributes:
        site_index: position of this site in the roster, and sites: its size; always set in a federation.
        summed: positions of the sites whose sums are in the plan's `totals`.
        loss_only: an evaluation needs nothing but `loss` (the scoring of candidates).
        probe: an evaluation needs the loss of so many of the site's examples, drawn by the round.
        proximal, control_variates, snapshot, importance: client terms (`learners.client_terms`).
        influence: the site scores its own update on shared validation notes.
        visit: the visit to train on.
        profiles: which sums of patients' profiles are wanted in place of training.
        mixture: the mixture of profiles that sites agreed on.
    """

    site_index: int | None = Field(default=None, ge=0, lt=MOST_SITES)
    sites: int | None = Field(default=None, ge=1, le=MOST_SITES)
    summed: tuple[Annotated[int, Field(strict=True, ge=0, lt=MOST_SITES)], ...] = Field(
        default=(), strict=False, max_length=MOST_SITES
    )
    loss_only: bool = False
    probe: int = Field(default=0, ge=0, le=1_000_000)
    proximal: ProximalHint | None = Field(
        default=None, validation_alias="fedprox", serialization_alias="fedprox"
    )
    control_variates: ControlVariatesHint | None = Field(
        default=None, validation_alias="scaffold", serialization_alias="scaffold"
    )
    snapshot: SnapshotHint | None = Field(default=None, validation_alias="drfa", serialization_alias="drfa")
    importance: ImportanceHint | None = None
    influence: InfluenceHint | None = None
    visit: VisitHint | None = Field(default=None, validation_alias="temporal", serialization_alias="temporal")
    profiles: str | None = Field(default=None, max_length=32)
    mixture: MixtureHint | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RoundHints:
        """Return the hints of a message.

        Raises:
            UpdateError: a key is unknown or a value is not what the key holds.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise UpdateError(f"the plan's hint '{place}' cannot be read: {first['msg']}.") from None

    def to_json(self) -> dict[str, Any]:
        """Return the members that were set, in JSON types and under the names by which they travel."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def __or__(self, other: RoundHints) -> RoundHints:
        """Return these hints with the members that `other` sets in their place."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})

    def without_visit(self) -> RoundHints:
        """Return the same hints for an exchange over all visits together."""
        kept = {name: getattr(self, name) for name in self.model_fields_set if name != "visit"}
        return RoundHints(**kept)
