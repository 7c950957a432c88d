# SPDX-License-Identifier: Apache-2.0
"""One task to several sites and what came back: deadline, quorum of accepted replies, grace, late replies.

FLARE's own `min_responses` counts error replies; here a site counts once its reply was accepted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medflare.evaluation.run_record import Traffic
from medflare.federation import wire
from medflare.federation.engine import ClientTask, Controller, FLContext, Signal, Task
from medflare.federation.failures import Code
from medflare.federation.messages import Reply, Request, read_reply

_TICK = 0.02

OnReply = Callable[[str, Reply], str | None]
"""(site, reply) -> reason if it cannot be accepted."""
OnSettled = Callable[[str], Mapping[str, str]]
"""site -> sites whose accepted reply is refused after all, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop waiting.

    Attributes:
        quorum: accepted replies that are enough; fewer than that is a failure of the exchange.
        deadline: seconds a site may take; `margin` is added for the way back of its error reply.
        grace: seconds to wait for the others once the quorum is there.
    """

    quorum: int
    deadline: float
    margin: float
    grace: float


@dataclass(slots=True)
class Outcome:
    """What came of an exchange: every asked site is in `facts` or in `absent`, or the job was stopped."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    seconds: float = 0.0
    aborted: bool = False

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Counts accepted replies as absent after all."""
        for site, reason in reasons.items():
            self.facts.pop(site, None)
            self.absent[site] = reason


class Exchange:
    """Runs one request through FLARE's broadcast task.

    Args:
        on_reply: called once for each good reply, never after the exchange is closed, one at a time.
        on_settled: called with a site once nothing more is expected of it; a reply that had to wait for that
            may be refused then, and counts no longer.
    """

    def __init__(self, request: Request, on_reply: OnReply, on_settled: OnSettled) -> None:
        self.request, self.on_reply, self.on_settled = request, on_reply, on_settled
        self.outcome = Outcome()
        self._lock = threading.Lock()
        self._closed = False
        self._down = 0

    def run(
        self, controller: Controller, sites: list[str], limits: Limits, fl_ctx: FLContext, abort: Signal
    ) -> Outcome:
        """Asks `sites` and waits; returns when all have settled, or waiting has no point any more."""
        started = time.monotonic()
        tensors = self.request.packed()
        message = self.request.to_shareable(tensors)
        self._down = wire.byte_count(tensors)
        task = Task(
            name=self.request.task,
            data=message,
            after_task_sent_cb=self._sent,
            result_received_cb=self._received,
        )
        controller.broadcast(task, fl_ctx, targets=list(sites), min_responses=0)
        reason = self._wait(controller, sites, limits, started, abort)
        self._close(sites, reason)
        controller.cancel_task(task)
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _wait(
        self, controller: Controller, sites: list[str], limits: Limits, started: float, abort: Signal
    ) -> str:
        """Waits; returns what to say of those who have not answered by then."""
        enough: float | None = None
        while True:
            now = time.monotonic()
            self._notice_dead(controller, sites)
            with self._lock:
                accepted = len(self.outcome.facts)
                waiting = len(sites) - accepted - len(self.outcome.absent)
            if waiting == 0:
                return ""
            if abort.triggered:
                self.outcome.aborted = True
                return "the job was stopped"
            if accepted + waiting < limits.quorum:
                return "given up: the quorum was out of reach"
            if accepted >= limits.quorum:
                enough = now if enough is None else enough
                if now - enough >= limits.grace:
                    return f"no reply within {limits.grace:g} s of the quorum"
            if now - started >= limits.deadline + limits.margin:
                return f"no reply within the deadline of {limits.deadline:g} s"
            time.sleep(_TICK)

    def _sent(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        with self._lock:
            self._traffic(client_task.client.name).received += self._down

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, message = client_task.client.name, client_task.result
        client_task.result = None
        with self._lock:
            if self._closed or site in self.outcome.facts or site in self.outcome.absent:
                return
            reply = read_reply(message)
            self._traffic(site).sent += wire.byte_count(reply.tensors)
            reason = self._judge(site, reply)
            if reason is None:
                self.outcome.facts[site] = reply.facts
            else:
                self.outcome.absent[site] = reason
            self._settle(site)

    def _judge(self, site: str, reply: Reply) -> str | None:
        """Why a reply is not accepted, or None."""
        if reply.failure is not None:
            return str(reply.failure)
        if reply.round != self.request.round:
            return f"late: reply of round {reply.round} in round {self.request.round}"
        try:
            return self.on_reply(site, reply)
        except Exception as error:
            return f"E{int(Code.UNEXPECTED)} reply could not be read ({type(error).__name__}: {error})"

    def _traffic(self, site: str) -> Traffic:
        return self.outcome.traffic.setdefault(site, Traffic())

    def _notice_dead(self, controller: Controller, sites: list[str]) -> None:
        """A site that FLARE knows to be disconnected is not waited for."""
        for site in sites:
            if controller.get_client_disconnect_time(site):
                with self._lock:
                    self._give_up(site, "disconnected")

    def _close(self, sites: list[str], reason: str) -> None:
        """Gives up everyone who has not answered; nothing is accepted from here on."""
        with self._lock:
            self._closed = True
            for site in sites:
                self._give_up(site, reason)

    def _give_up(self, site: str, reason: str) -> None:
        if site not in self.outcome.facts and site not in self.outcome.absent:
            self.outcome.absent[site] = reason
            self.outcome.silent.append(site)
            self._settle(site)

    def _settle(self, site: str) -> None:
        self.outcome.refuse(self.on_settled(site))
