# SPDX-License-Identifier: Apache-2.0
"""Sites that lie: in a real run, what one of them sends is replaced by whatever an attack makes of it.

The server, the rule, the other sites and FLARE's communicator are real. A lie is a function on the raw reply,
`{"round": ..., "facts": {...}}` and tensors, or a raw FLARE message in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lying_server import FAILURE, REPLY, over_the_wire
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

Lie = Callable[[dict[str, Any], dict[str, Any]], Shareable | None]
"""(reply's meta, tensors) -> None after changing them in place, or a message to send instead."""
Tamper = Callable[[str, str, Shareable], Shareable | None]


def lying(site: str, lies: Mapping[str, Lie], times: int | None = None) -> Tamper:
    """Return what makes one site of a `Federation` lie: pass it as `tamper`.

    Args:
        lies: task -> lie.
        times: how many replies to a task are lies; all without.
    """
    lies_sent = dict.fromkeys(lies, 0)

    def tamper(name: str, task: str, reply: Shareable) -> Shareable | None:
        if name != site or task not in lies or (times is not None and lies_sent[task] >= times):
            return None
        lies_sent[task] += 1
        if FAILURE in reply:
            return None
        dxo = from_shareable(over_the_wire(reply))
        meta, tensors = dict(dxo.meta), dict(dxo.data)
        meta[REPLY] = {**meta[REPLY], "facts": dict(meta[REPLY]["facts"])}
        instead = lies[task](meta[REPLY], tensors)
        return instead if instead is not None else _message(dxo, meta, tensors)

    return tamper


def _message(dxo: DXO, meta: dict[str, Any], tensors: dict[str, Any]) -> Shareable:
    return over_the_wire(DXO(dxo.data_kind, data=tensors, meta=meta).to_shareable())


def without(*keys: str) -> Lie:
    """Return the lie that leaves facts out."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        for key in keys:
            reply["facts"].pop(key, None)

    return lie


def claiming(**facts: Any) -> Lie:
    """Return the lie that claims these facts."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"].update(facts)

    return lie


def failing(**failure: Any) -> Lie:
    """Return the lie that sends a failure with these fields: `code`, `text`, `round`."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> Shareable:
        message = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        message[FAILURE] = {"code": 20, "text": "x", "round": reply["round"], **failure}
        return message

    return lie


def scaled(factor: float) -> Lie:
    """Return the lie that multiplies every floating tensor of an update."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, value in tensors.items():
            if value.is_floating_point():
                tensors[name] = value * factor

    return lie
