# SPDX-License-Identifier: Apache-2.0
"""The values of a run's state beside its tensors: one strict model, read before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from medflare.core.config import explain
from medflare.core.errors import DataError
from medflare.core.run_record import RecordModel, RunRecord, Traffic
from medflare.federation.server.run_state import RunState, load_state_to_go_on


class SketchValues(RecordModel):
    """The sketches that the server held.

    Attributes:
        held: site -> `Sketch.to_bytes`, as hexadecimal digits.
        received_at: site -> exchange at which its sketch came.
    """

    held: dict[str, str]
    texts: dict[str, int]
    without: dict[str, str]
    vocabularies: dict[str, str]
    renewed: list[dict[str, Any]]
    received_at: dict[str, int]


class RosterValues(RecordModel):
    """The participants: `Roster.to_json`.

    Attributes:
        excluded: site -> reason. suspended: site -> (exchange from which it is back, reason).
    """

    sites: list[str]
    excluded: dict[str, str]
    suspended: dict[str, tuple[int, str]]
    stragglers: list[str]


class RunValues(RecordModel):
    """`RunState.values`.

    Attributes:
        best: value of the best metric so far. summed: names of the declared sums.
        protection: `ServerProtection.state_values`. norms, sum_norms: site -> norm of its last update, and of
            the sums beside it.
        begun: sites that began the run. declared: site -> digest of what it declared.
    """

    roster: RosterValues
    best: float | None
    protection: dict[str, Any]
    simulated_seconds: float | None
    summed: list[str]
    agreed_hints: dict[str, Any]
    norms: dict[str, float]
    sum_norms: dict[str, float] = Field(default_factory=dict)
    lost_in_a_row: int = Field(ge=0)
    begun: list[str]
    declared: dict[str, str]
    sketches: SketchValues
    early_traffic: dict[str, Traffic]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The last complete state of a run, read and checked."""

    state: RunState
    values: RunValues
    record: RunRecord


def load_run(folder: Path) -> SavedRun:
    """Return the last complete state in a run's folder of states, from which the run goes on.

    Raises:
        DataError: there is none that is whole, or it is not what this version of medflare writes.
    """
    state = load_state_to_go_on(folder)
    try:
        return SavedRun(
            state, RunValues.model_validate(state.values), RunRecord.model_validate_json(state.record)
        )
    except ValidationError as error:
        where = explain(error, RunValues, "the state of the run")
        raise DataError(
            f"{where}\n{folder}: another version of medflare wrote this state, or somebody edited it. Resume "
            "the run with the version that began it, which its run.json names."
        ) from None
