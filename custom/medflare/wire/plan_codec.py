# SPDX-License-Identifier: Apache-2.0
"""A round's plan in JSON types, and back. Its totals travel beside it as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State


def plan_to_json(plan: RoundPlan) -> dict[str, Any]:
    """Return a plan in JSON types, without `totals`."""
    values = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
    values.pop("totals")
    return {**values, "hints": plan.hints.to_json()}


def plan_from_json(data: Mapping[str, Any], totals: State) -> RoundPlan:
    """Return the plan that `plan_to_json` was given, with these totals."""
    hints = RoundHints.from_json(data.get("hints", {}))
    return RoundPlan(**{**data, "hints": hints, "totals": totals})
