# SPDX-License-Identifier: Apache-2.0
"""Messages changed on their way, lost, or looked at: values of `mislead` and `tamper` of `Federation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fed_harness import Tamper
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from medflare.protocol.messages import STEPS

Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""Changes tensors by name, and the request or reply that stands beside them, in place."""
GOOD = (None, ReturnCode.OK)


def changed(site: str, task: str, change: Change) -> Tamper:
    """`mislead`: one site is sent another message of a task than the others."""

    def mislead(name: str, asked: str, message: Shareable) -> Shareable | None:
        if (name, asked) != (site, task):
            return None
        dxo = from_shareable(message)
        dxo.data = {key: value.clone() for key, value in dxo.data.items()}
        dxo.meta = {**dxo.meta, "medflare_request": dict(dxo.meta["medflare_request"])}
        change(dxo.data, dxo.meta["medflare_request"])
        return dxo.to_shareable()

    return mislead


def spoiled(site: str, task: str, change: Change) -> Tamper:
    """`tamper`: a site's replies to a task arrive changed; `change` gets their tensors and facts."""

    def tamper(name: str, asked: str, reply: Shareable) -> Shareable | None:
        if (name, asked) != (site, task) or reply.get_return_code() not in GOOD:
            return None
        dxo = from_shareable(reply)
        words = dxo.meta["medflare_reply"]
        facts = dict(words["facts"])
        change(dxo.data, facts)
        dxo.meta = {**dxo.meta, "medflare_reply": {**words, "facts": facts}}
        return dxo.to_shareable()

    return tamper


def watched(task: str, look: Callable[[str, dict[str, Any], dict[str, Any]], object]) -> Tamper:
    """`tamper`: every reply to a task is shown to `look` as site, tensors and facts, and goes on as it is."""

    def tamper(site: str, asked: str, reply: Shareable) -> None:
        if asked == task and reply.get_return_code() in GOOD:
            dxo = from_shareable(reply)
            look(site, dict(dxo.data), dxo.meta["medflare_reply"]["facts"])

    return tamper


def together(*tampers: Tamper) -> Tamper:
    """`tamper`: all of these see every reply; the first change of it counts."""

    def tamper(site: str, asked: str, reply: Shareable) -> Shareable | None:
        changes = [each(site, asked, reply) for each in tampers]
        return next((change for change in changes if change is not None), None)

    return tamper


def losing(task: str, *sites: str, number: int = 1) -> Tamper:
    """`tamper`: these sites do not get through with one message of one task, counted from 0."""
    seen: dict[tuple[str, str], int] = {}

    def tamper(site: str, asked: str, reply: Shareable) -> Shareable | None:
        seen[site, asked] = seen.get((site, asked), 0) + 1
        lost = asked == task and site in sites and seen[site, asked] == number + 1
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if lost else None

    return tamper


def in_round(task: str, number: int, measuring: bool = False) -> int:
    """Return which message of a task is a masked round's: it goes through the steps of a sum twice.

    Args:
        measuring: whether for the sum of what sites measure, after that of the round's updates.
    """
    return 2 * number + measuring if task in STEPS else number
