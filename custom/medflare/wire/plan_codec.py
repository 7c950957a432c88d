# SPDX-License-Identifier: Apache-2.0
"""A round's plan in JSON types, and back. Its totals travel beside it as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State

FIRST_EXCHANGE, MOST_ROUNDS = -1000, 100_000
"""Exchanges of sums alone are counted up to -2, from here at the earliest; and the most rounds of a run."""
BEFORE_ROUNDS = -1
"""Number of everything before round 0 that is no exchange of sums."""
SEED = 2**63
"""Seeds lie between minus this and this."""


class PlanMessage(BaseModel):
    """A plan as it travels: every field has its type and its bounds, and no other key is allowed.

    A round below -1 is an exchange of sums of profiles, and asks for nothing else; no other round asks for
    such sums.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    round: int = Field(ge=FIRST_EXCHANGE, le=MOST_ROUNDS)
    rounds: int = Field(ge=1, le=MOST_ROUNDS)
    steps: int | None = Field(default=None, ge=1, le=10_000_000)
    fraction: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=0, ge=-SEED, lt=SEED)
    limit: int | None = Field(default=None, ge=1, le=10**9)
    hints: RoundHints = Field(default_factory=RoundHints)

    @model_validator(mode="after")
    def _in_the_run(self) -> Self:
        if self.round > self.rounds:
            raise ValueError(f"round {self.round} of {self.rounds} rounds, expected at most {self.rounds}")
        if self.round == BEFORE_ROUNDS:
            raise ValueError("round -1, expected no plan before round 0")
        if (self.round < BEFORE_ROUNDS) != (self.hints.profiles is not None):
            raise ValueError(
                f"round {self.round} with hints.profiles {self.hints.profiles!r}, expected sums of profiles "
                "in rounds before -1 and in no other"
            )
        return self


def plan_to_json(plan: RoundPlan) -> dict[str, Any]:
    """Return a plan in JSON types, without `totals`."""
    values = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    values.pop("totals")
    return {**values, "hints": plan.hints.to_json()}


def plan_from_json(data: Mapping[str, Any], totals: State) -> RoundPlan:
    """Return the plan that `plan_to_json` was given, with these totals.

    Raises:
        UpdateError: a key is unknown, or a value is not what the key holds.
    """
    hints = RoundHints.from_json(data.get("hints", {}))
    try:
        plan = PlanMessage.model_validate({**data, "hints": hints})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UpdateError(f"the plan's {place or 'round'} cannot be read: {first['msg']}.") from None
    names = (item.name for item in dataclasses.fields(RoundPlan) if item.name != "totals")
    return RoundPlan(**{name: getattr(plan, name) for name in names}, totals=totals)
