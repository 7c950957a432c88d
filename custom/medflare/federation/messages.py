# SPDX-License-Identifier: Apache-2.0
"""What server and sites say to each other, as FLARE messages: tensors in a DXO, all else in its meta.

Tensors are compressed in a message and nowhere else; a reply's stay so until the aggregator has judged them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from medflare.core.tensors import State
from medflare.egress.declaration import EXACT
from medflare.egress.failures import Code, Failure
from medflare.federation.engine import (
    DXO,
    AppConstants,
    DataKind,
    MetaKey,
    ReturnCode,
    Shareable,
    from_shareable,
    make_reply,
)
from medflare.federation.protections import Protection
from medflare.wire import compression
from medflare.wire.digest import state_digest

WORK = PREPARE, SKETCH, INITIALISE, FIT, EVALUATE, FINISH = (
    "prepare",
    "sketch",
    "initialise",
    "fit",
    "evaluate",
    "finish",
)
"""What a worker does."""
STEPS = KEYS, SHARES, CONFIRM, REVEAL = ("keys", "shares", "confirm", "reveal")
"""Steps of a secure sum, which a site's executor answers itself."""
TASKS = (*WORK, *EXACT, *STEPS)
LOCAL = ("tensors", "work")
"""What of a request does not travel in its words."""
_REQUEST, _REPLY, _FAILURE = "medflare_request", "medflare_reply", "medflare_failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A task as the server sends it to every site it asks.

    Attributes:
        round: -1 before round 0.
        plan: `plan_to_json` of the round's plan.
        roster: all sites of the run in order; a site finds its own index in it.
        deadline: seconds a site may take.
        uplink, downlink: how floating tensors travel to the server and to the sites.
        protection: how updates are kept from the server's eyes.
        work: of a request as received under masks: digest of the plan and the tensors as they travelled.
    """

    task: str
    run_id: str
    round: int
    roster: list[str]
    deadline: float
    uplink: compression.Uplink
    downlink: compression.Downlink
    protection: Protection = "none"
    seed: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tensors: State = field(default_factory=dict)
    work: str = ""

    def packed(self) -> State:
        """The tensors as they travel."""
        return compression.compress(self.tensors, self.downlink)

    def to_shareable(self, tensors: State) -> Shareable:
        """The message that carries `tensors`, which `packed` made."""
        words = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in LOCAL}
        kind = DataKind.WEIGHTS if tensors else DataKind.APP_DEFINED
        message = DXO(kind, data=tensors, meta={_REQUEST: words}).to_shareable()
        message.set_header(AppConstants.CURRENT_ROUND, self.round)
        return message


def read_request(message: Shareable) -> Request:
    """The request in a FLARE message; UpdateError where its tensors cannot be unpacked."""
    dxo = from_shareable(message)
    words = dxo.meta[_REQUEST]
    bound = words["protection"] == "masking" and words["task"] == FIT
    work = work_digest(words["plan"], dxo.data) if bound else ""
    return Request(**words, tensors=compression.decompress(dxo.data), work=work)


def work_digest(plan: Mapping[str, Any], travelling: State) -> str:
    """sha256 of what a site is sent to train on: the same at all sites of a secure sum."""
    text = json.dumps(plan, sort_keys=True)
    return hashlib.sha256(f"{text}|{state_digest(travelling)}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a site answered: facts and tensors as they travelled, or a failure."""

    round: int
    facts: dict[str, Any]
    tensors: State
    failure: Failure | None = None


def reply(request: Request, facts: Mapping[str, Any], tensors: State) -> Shareable:
    """A good answer to a request."""
    kinds = {FIT: DataKind.WEIGHT_DIFF, INITIALISE: DataKind.WEIGHTS}
    words: dict[str, Any] = {"round": request.round, "facts": dict(facts)}
    meta: dict[str, Any] = {_REPLY: words}
    if "examples" in facts:
        meta[MetaKey.NUM_STEPS_CURRENT_ROUND] = facts["examples"]
    message = DXO(kinds.get(request.task, DataKind.APP_DEFINED), data=tensors, meta=meta).to_shareable()
    message.set_header(AppConstants.CURRENT_ROUND, request.round)
    return message


def failure_reply(failure: Failure, round_number: int) -> Shareable:
    """An answer that says what went wrong, in words that may leave the site."""
    aborted = failure.code is Code.ABORTED
    message = make_reply(ReturnCode.TASK_ABORTED if aborted else ReturnCode.EXECUTION_EXCEPTION)
    message[_FAILURE] = {**failure.to_json(), "round": round_number}
    return message


def read_reply(message: Shareable) -> Reply:
    """What came back; anything that is not one of our replies becomes a failure with FLARE's return code."""
    if _FAILURE in message:
        words = message[_FAILURE]
        return Reply(int(words["round"]), {}, {}, Failure.from_json(words))
    code = message.get_return_code()
    if code not in (None, ReturnCode.OK):
        failure = Failure(Code.UNEXPECTED, f"FLARE answered {code} in place of the site's executor.")
        return Reply(-1, {}, {}, failure)
    try:
        dxo = from_shareable(message)
        words = dxo.meta[_REPLY]
        return Reply(int(words["round"]), dict(words["facts"]), dict(dxo.data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Reply(-1, {}, {}, Failure(Code.UNEXPECTED, f"unreadable reply ({type(error).__name__})."))
