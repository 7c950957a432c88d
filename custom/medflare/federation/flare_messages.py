# SPDX-License-Identifier: Apache-2.0
"""Requests and replies between server and sites as FLARE messages: tensors in a DXO, all else in its meta.

A site reads a request by the strict models of `protocol.requests`, and the server a reply by those of
`protocol.replies`. Tensors are compressed in a message and nowhere else; a reply's stay so until the
aggregator has validated it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from medflare.core.tensors import State
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
    register_tensors,
)
from medflare.protocol.messages import INITIALISE, NOT_IN_META, STATE_TASKS, Reply, Request, work_digest
from medflare.protocol.requests import check_request
from medflare.protocol.strict_model import shown, tensor_problem
from medflare.wire import compression

register_tensors()

_REQUEST, _REPLY, _FAILURE = "medflare_request", "medflare_reply", "medflare_failure"


def request_message(request: Request, tensors: State) -> Shareable:
    """Return the message that carries a request, with `tensors`, which `Request.packed` made."""
    meta = {
        item.name: getattr(request, item.name) for item in fields(request) if item.name not in NOT_IN_META
    }
    data_kind = DataKind.WEIGHTS if tensors else DataKind.APP_DEFINED
    message = DXO(data_kind, data=tensors, meta={_REQUEST: meta}).to_shareable()
    message.set_header(AppConstants.CURRENT_ROUND, request.round)
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
