# SPDX-License-Identifier: Apache-2.0
"""Requests and replies between server and sites as FLARE messages: tensors in a DXO, all else in its meta.

A site reads a request by the strict models of `protocol.requests`, and the server a reply by those of
`protocol.replies`. Tensors are compressed in a message and nowhere else; a reply's stay so until the
aggregator has validated it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from medflare.core.tensors import State
from medflare.egress.declaration import EXACT
from medflare.egress.failures import Failure, FailureCode, MessageError, clean_text
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
from medflare.protocol.requests import check_request
from medflare.protocol.strict_model import shown, tensor_problem
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
_REQUEST, _REPLY, _FAILURE = "medflare_request", "medflare_reply", "medflare_failure"


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

    def to_shareable(self, tensors: State) -> Shareable:
        """Return the message that carries `tensors`, which `packed` made."""
        meta = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in NOT_IN_META}
        data_kind = DataKind.WEIGHTS if tensors else DataKind.APP_DEFINED
        message = DXO(data_kind, data=tensors, meta={_REQUEST: meta}).to_shareable()
        message.set_header(AppConstants.CURRENT_ROUND, self.round)
        return message


def read_request(message: Shareable, task_name: str, site: str = "") -> Request:
    """Return the request in a FLARE message, once strict models have read every field of it.

    Args:
        task_name: as FLARE called the task.
        site: who was asked; it must be in the roster. Empty for anybody.

    Raises:
        MessageError: it is no request; the text says what was found and what was expected.
        UpdateError: its tensors cannot be unpacked.
    """
    try:
        dxo = from_shareable(message)
        meta, data = dxo.meta[_REQUEST], dxo.data
    except Exception as error:  # FLARE raises what it likes on what is no message of ours
        raise MessageError(f"the message '{task_name}' holds no request ({type(error).__name__}).") from None
    checked = check_request(meta, task_name, site)
    problem = tensor_problem(data)
    if problem:
        raise MessageError(f"the request '{task_name}' cannot be read: {problem}.")
    work = work_digest(checked.plan, data) if task_name in STATE_TASKS else ""
    given = {name: getattr(checked, name) for name in type(checked).model_fields}
    return Request(**given, tensors=compression.decompress(data), work=work)


def work_digest(plan: Mapping[str, Any], travelling: State) -> str:
    """Return the sha256 of what a site is sent to work on: the same at all sites of a round."""
    text = json.dumps(plan, sort_keys=True)
    return hashlib.sha256(f"{text}|{state_digest(travelling)}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """A site's reply: facts and tensors as they travelled, or a failure."""

    round: int
    facts: dict[str, Any]
    tensors: State
    failure: Failure | None = None


def reply(request: Request, facts: Mapping[str, Any], tensors: State) -> Shareable:
    """Return the message of a good reply to a request."""
    data_kinds = {**dict.fromkeys(STATE_TASKS, DataKind.WEIGHT_DIFF), INITIALISE: DataKind.WEIGHTS}
    meta: dict[str, Any] = {_REPLY: {"round": request.round, "facts": dict(facts)}}
    if "examples" in facts:
        meta[MetaKey.NUM_STEPS_CURRENT_ROUND] = facts["examples"]
    message = DXO(data_kinds.get(request.task, DataKind.APP_DEFINED), data=tensors, meta=meta).to_shareable()
    message.set_header(AppConstants.CURRENT_ROUND, request.round)
    return message


def failure_reply(failure: Failure, round_number: int) -> Shareable:
    """Return the message of what went wrong, in words that may leave the site."""
    aborted = failure.code is FailureCode.ABORTED
    message = make_reply(ReturnCode.TASK_ABORTED if aborted else ReturnCode.EXECUTION_EXCEPTION)
    message[_FAILURE] = {**failure.to_json(), "round": round_number}
    return message


def read_reply(message: Any) -> Reply:
    """Return the reply in a message; never raises.

    What is none of ours becomes a failure: with FLARE's return code, or of the kind that cannot be read.
    """
    try:
        return _read_reply(message)
    except Exception as error:  # it runs in FLARE's callback, where an exception would lose the whole task
        return Reply(
            -1, {}, {}, Failure(FailureCode.UNEXPECTED, f"unreadable reply ({type(error).__name__}).")
        )


def _read_reply(message: Shareable) -> Reply:
    if _FAILURE in message:
        failure = message[_FAILURE]
        number = failure.get("round")
        return Reply(number if _is_whole(number) else -1, {}, {}, Failure.from_json(failure))
    code = message.get_return_code()
    if code not in (None, ReturnCode.OK):
        words = f"FLARE answered {clean_text(str(code), 80)} in place of the site's executor."
        return Reply(-1, {}, {}, Failure(FailureCode.UNEXPECTED, words))
    dxo = from_shareable(message)
    content = dxo.meta[_REPLY]
    number, facts = content["round"], content["facts"]
    problem = tensor_problem(dxo.data)
    if not _is_whole(number):
        problem = f"round {shown(number)}, expected a whole number"
    elif type(facts) is not dict:
        problem = f"facts are {shown(facts)}, expected facts by name"
    if problem:
        return Reply(-1, {}, {}, Failure(FailureCode.MESSAGE, f"unreadable reply: {problem}."))
    return Reply(number, facts, dict(dxo.data))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
