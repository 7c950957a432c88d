# SPDX-License-Identifier: Apache-2.0
"""Messages between a site's executor and the worker that runs its learner: a request and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from medflare.core.tensors import State


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """One task for a worker.

    Attributes:
        task: a key of the worker session's table of tasks, for instance "fit".
        plan: the round's plan as `plan_to_json` gives it; empty before round 1.
        options: what else the task needs, JSON types.
        tensors: as received, decompressed.
        work: digest of plan and tensors as they travelled; empty where nothing is answered from memory.
    """

    task: str
    plan: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)
    work: str = ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task before the egress chain: JSON facts and tensors."""

    facts: dict[str, Any]
    tensors: State
