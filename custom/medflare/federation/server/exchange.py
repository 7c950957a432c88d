# SPDX-License-Identifier: Apache-2.0
"""One task to several sites and what came back: deadline, quorum of accepted replies, grace, late replies.

FLARE's own `min_responses` counts error replies; here a site counts once its reply was accepted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medflare.core.errors import RunError
from medflare.core.run_record import Traffic
from medflare.egress.failures import Code
from medflare.federation.engine import ClientTask, Controller, FLContext, Signal, Task
from medflare.federation.messages import Reply, Request, read_reply
from medflare.wire.digest import byte_count

_TICK = 0.02
_BREATH = 0.2
"""Seconds after a judgement in which nobody is given up: FLARE hands on one reply at a time, and others may
be there and wait for that."""
TOO_SLOW = "no reply within"
OVERDUE = f"{TOO_SLOW} the deadline of"
"""Begins the reason of a site that was given up because it took too long."""

OnReply = Callable[[str, Reply], str | None]
"""(site, reply) -> reason if it cannot be accepted."""
OnSettled = Callable[[str], Mapping[str, str]]
"""site -> sites whose accepted reply is refused after all, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop waiting.

    Attributes:
        quorum: accepted replies without which the exchange has failed.
        deadline: seconds a site may take; `margin` is added for the way back of its error reply.
        enough: accepted replies after which the others have `grace`; None where everybody is waited for.
        grace: seconds to wait for the others once there are `enough`, or for `quiet` sites once there is a
            quorum and nobody else is left.
        quiet: sites that have passed a deadline before.
    """

    quorum: int
    deadline: float
    margin: float
    grace: float
    enough: int | None = None
    quiet: frozenset[str] = frozenset()


@dataclass(slots=True)
class Outcome:
    """What came of an exchange: every asked site is in `facts` or in `absent`, or the job was stopped.

    Attributes:
        trips: site -> seconds from its task's leaving to its accepted reply.
        waited: site -> seconds after which it was given up, of those that were too slow or are disconnected.
        overdue: sites that passed the deadline, by their own word or by ours.
    """

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    trips: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    seconds: float = 0.0
    aborted: bool = False

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Counts accepted replies as absent after all."""
        for site, reason in reasons.items():
            self.facts.pop(site, None)
            self.absent[site] = reason


class TooFewError(RunError):
    """Fewer sites answered than are needed.

    Attributes:
        outcome: who did not, and why.
    """

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome


class Exchange:
    """Runs one request through FLARE's broadcast task.

    Args:
        on_reply: called once for each good reply, never after the exchange is closed, one at a time.
        on_settled: called with a site once nothing more is expected of it; a reply that had to wait for that
            may be refused then, and counts no longer.
        own: requests that differ from site to site; they replace `request`, of the same task and round.
    """

    def __init__(
        self,
        request: Request,
        on_reply: OnReply,
        on_settled: OnSettled,
        own: Mapping[str, Request] | None = None,
    ) -> None:
        self.request, self.on_reply, self.on_settled = request, on_reply, on_settled
        self.own = dict(own or {})
        self.outcome = Outcome()
        self._lock = threading.Lock()
        self._closed, self._judged = False, -math.inf
        self._down: dict[str, int] = {}
        self._left: dict[str, float] = {}

    def run(
        self, controller: Controller, sites: list[str], limits: Limits, fl_ctx: FLContext, abort: Signal
    ) -> Outcome:
        """Asks `sites` and waits; returns when all have settled, or waiting has no point any more."""
        self._started = started = time.monotonic()
        asked = [(self.own[site], [site]) for site in sites] if self.own else [(self.request, list(sites))]
        tasks = [(self._task(request, targets), targets) for request, targets in asked]
        for task, targets in tasks:
            controller.broadcast(task, fl_ctx, targets=targets, min_responses=0)
        reason = self._wait(controller, sites, limits, started, abort)
        self._close(sites, reason)
        for task, _ in tasks:
            controller.cancel_task(task)
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _task(self, request: Request, sites: list[str]) -> Task:
        """FLARE's task that brings a request to these sites."""
        tensors = request.packed()
        self._down |= dict.fromkeys(sites, byte_count(tensors))
        return Task(
            name=request.task,
            data=request.to_shareable(tensors),
            after_task_sent_cb=self._sent,
            result_received_cb=self._received,
        )

    def _wait(
        self, controller: Controller, sites: list[str], limits: Limits, started: float, abort: Signal
    ) -> str:
        """Waits; returns what to say of those who have not answered by then."""
        enough: float | None = None
        while True:
            now = time.monotonic()
            self._notice_dead(controller, sites, limits.deadline)
            with self._lock:
                accepted = len(self.outcome.facts)
                left = set(sites) - set(self.outcome.facts) - set(self.outcome.absent)
                breath = time.monotonic() - self._judged < _BREATH
            if not left:
                return ""
            if abort.triggered:
                self.outcome.aborted = True
                return "the job was stopped"
            if accepted + len(left) < limits.quorum:
                return "given up: the quorum was out of reach"
            reached = limits.enough is not None and accepted >= limits.enough
            if reached or (accepted >= limits.quorum and left <= limits.quiet):
                enough = now if enough is None else enough
                if now - enough >= limits.grace and not breath:
                    return f"{TOO_SLOW} {limits.grace:g} s of the {'quorum' if reached else 'others'}"
            if now - started >= limits.deadline + limits.margin and not breath:
                return f"{OVERDUE} {limits.deadline:g} s"
            time.sleep(_TICK)

    def _sent(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        with self._lock:
            self._left[client_task.client.name] = time.monotonic()
            self._traffic(client_task.client.name).received += self._down[client_task.client.name]

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, message, came = client_task.client.name, client_task.result, time.monotonic()
        client_task.result = None
        with self._lock:
            if self._closed or site in self.outcome.facts or site in self.outcome.absent:
                return
            reply = read_reply(message)
            if reply.failure is not None and reply.failure.code is Code.DEADLINE:
                self.outcome.overdue.append(site)
            self._traffic(site).sent += byte_count(reply.tensors)
            reason = self._judge(site, reply)
            if reason is None:
                self.outcome.facts[site] = reply.facts
                self.outcome.trips[site] = came - self._left.get(site, self._started)
            else:
                self.outcome.absent[site] = reason
            self._settle(site)
            self._judged = time.monotonic()

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

    def _notice_dead(self, controller: Controller, sites: list[str], deadline: float) -> None:
        """A site that FLARE knows to be disconnected is not waited for: it would miss the deadline."""
        for site in sites:
            if controller.get_client_disconnect_time(site):
                with self._lock:
                    self._give_up(site, "disconnected", deadline)

    def _close(self, sites: list[str], reason: str) -> None:
        """Gives up everyone who has not answered; nothing is accepted from here on."""
        with self._lock:
            self._closed = True
            waited = time.monotonic() - self._started if reason.startswith(TOO_SLOW) else None
            for site in sites:
                self._give_up(site, reason, waited)

    def _give_up(self, site: str, reason: str, waited: float | None) -> None:
        if site not in self.outcome.facts and site not in self.outcome.absent:
            self.outcome.absent[site] = reason
            if reason.startswith(OVERDUE):
                self.outcome.overdue.append(site)
            if waited is not None:
                self.outcome.waited[site] = waited
            self.outcome.silent.append(site)
            self._settle(site)

    def _settle(self, site: str) -> None:
        self.outcome.refuse(self.on_settled(site))
