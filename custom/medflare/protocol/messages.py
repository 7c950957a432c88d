# SPDX-License-Identifier: Apache-2.0
"""Tasks, requests and replies of a run, as server and sites hold them; `federation` sends them by FLARE."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medflare.core.tensors import State
from medflare.egress.declaration import EXACT
from medflare.egress.failures import Failure
from medflare.wire import compression
from medflare.wire.digest import state_digest

WORKER_TASKS = PREPARE, SKETCH, INITIALISE, FIT, EVALUATE, FINISH = (
    "prepare",
    "sketch",
    "initialise",
    "fit",
    "evaluate",
    "finish",
)
"""Tasks that a worker does."""
STEPS = KEYS, SHARES, CONFIRM, REVEAL = ("keys", "shares", "confirm", "reveal")
"""Steps of a secure sum, which a site's executor answers itself."""
STATE_TASKS = (FIT, EVALUATE, FINISH)
"""Tasks that bring a state to work on, and whose answers can be parts of a secure sum."""
MEASURE = (EVALUATE, FINISH)
"""Tasks that measure a state on a site's examples."""
TASKS = (*WORKER_TASKS, *EXACT, *STEPS)
NOT_IN_META = ("tensors", "work")
"""Fields of a request that are not in a message's meta: tensors travel beside it, `work` not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A task as the server sends it to every selected site.

    Attributes:
        round: -1 before round 0.
        plan: `plan_to_json` of the round's plan.
        roster: all sites of the run in order; a site finds its own index in it.
        deadline: seconds a site may take.
        uplink, downlink: how floating tensors travel to the server and to the sites.
        protection: how updates are kept from the server's eyes.
        work: of a request as received that brings a state: digest of the plan and of the tensors as they
            travelled. The very same work has the very same answer; a protection may bind sites to it.
    """

    task: str
    run_id: str
    round: int
    roster: list[str]
    deadline: float
    uplink: compression.Uplink
    downlink: compression.Downlink
    protection: str = "none"
    seed: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)
    work: str = ""

    @property
    def place(self) -> int:
        """Place of its update among those of the job: the number of its round, -1 for a canary's."""
        terms = (self.options.get("secure_sum") or {}).get("terms", {})
        return -1 if self.options.get("canary") or terms.get("canary") else self.round

    def packed(self) -> State:
        """Return the tensors as they travel."""
        return compression.compress(self.tensors, self.downlink)


@dataclass(frozen=True, slots=True)
class Reply:
    """A site's reply: facts and tensors as they travelled, or a failure.

    Attributes:
        trip: seconds from its task's leaving to its coming, by the server's clock.
    """

    round: int
    facts: dict[str, Any]
    tensors: State
    failure: Failure | None = None
    trip: float = 0.0


def work_digest(plan: Mapping[str, Any], travelling: State) -> str:
    """Return the sha256 of what a site is sent to work on: the same at all sites of a round."""
    text = json.dumps(plan, sort_keys=True)
    return hashlib.sha256(f"{text}|{state_digest(travelling)}".encode()).hexdigest()
