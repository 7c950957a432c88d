# SPDX-License-Identifier: Apache-2.0
"""One task to several sites and their replies: deadline, quorum of accepted replies, stragglers.

FLARE's own `min_responses` counts error replies; here a site counts once its reply was accepted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from medflare.core.run_record import Traffic
from medflare.egress.failures import Failure, FailureCode, MessageError, clean_text
from medflare.federation.engine import ClientTask, Controller, FLContext, Signal, Task
from medflare.federation.flare_messages import read_reply, request_message
from medflare.protocol.messages import Reply, Request
from medflare.protocol.outcome import OnDone, OnLate, OnReply, Outcome
from medflare.protocol.replies import check_facts
from medflare.protocol.strict_model import shown
from medflare.wire.digest import byte_count

_TICK = 0.02
"""Seconds between two looks at who has replied."""
_QUEUE_PAUSE = 0.2
"""Seconds after a validated reply in which nobody is given up. FLARE delivers one reply at a time, and
validating one (scoring an update, say) can take long: replies that have arrived and wait in FLARE's queue
must not be taken for missing ones."""
TOO_SLOW = "no reply within"
"""Begins the reason of a site that was given up because it took too long."""
OVERDUE = f"{TOO_SLOW} the deadline of"
"""The same where the deadline of the task was what it passed."""


Counting = Callable[[], tuple[int, int]]
"""Returns how many updates of earlier exchanges have come since the last one, and how many still may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """Conditions under which an exchange stops waiting.

    Attributes:
        quorum: accepted replies without which the exchange has failed.
        deadline: seconds a site may take; `margin` is added for the way back of its error reply.
        min_responses: accepted replies after which the others have `straggler_timeout`; None where everybody
            is waited for.
        straggler_timeout: seconds to wait for the others once there are `min_responses`, or for `stragglers`
            once there is a quorum and nobody else is left.
        stragglers: sites that have passed a deadline before.
        mandatory: sites without which the exchange has failed; they have the whole deadline.
        share: in place of `straggler_timeout` after `min_responses`, this share of the time until then.
        counting: updates of earlier exchanges, which count among the replies and are waited for as well.
    """

    quorum: int
    deadline: float
    margin: float
    straggler_timeout: float
    min_responses: int | None = None
    stragglers: frozenset[str] = frozenset()
    mandatory: frozenset[str] = frozenset()
    share: float | None = None
    counting: Counting | None = None

    def patience(self, reached: bool, seconds: float) -> float:
        """Return how many seconds the others have, once `reached` or only stragglers are missing.

        Args:
            seconds: of the exchange until then.
        """
        return self.share * seconds if reached and self.share is not None else self.straggler_timeout


class Exchange:
    """Run one request through FLARE's broadcast task.

    FLARE calls `_sent` and `_received` in its own threads while `run` waits in the controller's; the lock
    guards `outcome`, and whoever holds it is the only one to call `on_reply` and `on_done`.

    Args:
        on_reply: called once for each good reply, never after the exchange is closed, one at a time.
        on_done: called with a site once nothing more is expected of it; a reply that had to wait for that
            may be refused then, and counts no longer.
        per_site: requests that differ from site to site; they replace `request`, of the same task and round.
        on_late: called with the reply of a site that was given up for being too slow; FLARE's task stays open
            for it until `Outcome.release` is called. Without, FLARE's client throws such a reply away.
    """

    def __init__(
        self,
        request: Request,
        on_reply: OnReply,
        on_done: OnDone,
        per_site: Mapping[str, Request] | None = None,
        on_late: OnLate | None = None,
    ) -> None:
        self.request, self.on_reply, self.on_done = request, on_reply, on_done
        self.per_site, self.on_late = dict(per_site or {}), on_late
        self.outcome = Outcome()
        self._lock = threading.Lock()
        self._closed, self._last_validated = False, -math.inf
        self._bytes_down: dict[str, int] = {}
        self._sent_at: dict[str, float] = {}

    def run(
        self, controller: Controller, sites: list[str], limits: WaitLimits, fl_ctx: FLContext, abort: Signal
    ) -> Outcome:
        """Send the request to `sites`; return when all are done, or waiting has no point any more."""
        self._started = started = time.monotonic()
        requests = (
            [(self.per_site[site], [site]) for site in sites]
            if self.per_site
            else [(self.request, list(sites))]
        )
        tasks = [(self._task(request, targets), targets) for request, targets in requests]
        for task, targets in tasks:
            if targets:  # to FLARE no target means all sites
                controller.broadcast(task, fl_ctx, targets=targets, min_responses=0)
        reason = self._wait(controller, sites, limits, started, abort)
        self._close(sites, reason)
        self.outcome.release = partial(_cancel, controller, [task for task, _ in tasks])
        if self.on_late is None or not self.outcome.too_slow:
            self.outcome.release()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _task(self, request: Request, sites: list[str]) -> Task:
        """Return FLARE's task that brings a request to these sites."""
        tensors = request.packed()
        self._bytes_down |= dict.fromkeys(sites, byte_count(tensors))
        return Task(
            name=request.task,
            data=request_message(request, tensors),
            after_task_sent_cb=self._sent,
            result_received_cb=self._received,
        )

    def _wait(
        self, controller: Controller, sites: list[str], limits: WaitLimits, started: float, abort: Signal
    ) -> str:
        """Wait, and return the reason to record for the sites that have not replied by then.

        The order of the checks matters. A stopped job ends the wait before anything else is decided. If so
        many sites have failed that the quorum cannot be met any more, every further second is wasted, so that
        is next. `straggler_since` starts once and is not reset: a reply that is refused later must not give
        the remaining sites their time anew.
        """
        straggler_since: float | None = None
        counting = limits.counting or _count_nothing
        while True:
            now = time.monotonic()
            self._give_up_disconnected(controller, sites, limits.deadline)
            with self._lock:
                came, coming = counting()
                accepted = len(self.outcome.facts) + came
                missing = set(sites) - set(self.outcome.facts) - set(self.outcome.absent)
                lost = sorted(limits.mandatory & set(self.outcome.absent))
                queued = time.monotonic() - self._last_validated < _QUEUE_PAUSE
            enough = limits.min_responses is not None and accepted >= limits.min_responses
            if not missing and (enough or not coming):
                return ""
            if abort.triggered:
                self.outcome.aborted = True
                return "the job was stopped"
            if accepted + len(missing) + coming < limits.quorum:
                return "given up: the quorum was out of reach"
            if lost:
                return f"given up: {lost[0]}, which the job names as mandatory, was lost"
            reached = enough and not missing & limits.mandatory
            # Sites that passed their last deadline would hold up every evaluation by a whole deadline again.
            only_stragglers = accepted >= limits.quorum and missing <= limits.stragglers - limits.mandatory
            if reached or (only_stragglers and missing):
                straggler_since = now if straggler_since is None else straggler_since
                patience = limits.patience(reached, straggler_since - started)
                if reached and limits.counting is not None:
                    return f"{TOO_SLOW} the round, which ended with {accepted} updates"
                if now - straggler_since >= patience and not queued:
                    return f"{TOO_SLOW} {patience:.4g} s of the {'quorum' if reached else 'others'}"
            if now - started >= limits.deadline + limits.margin and not queued:
                return f"{OVERDUE} {limits.deadline:g} s"
            time.sleep(_TICK)

    def _sent(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site = client_task.client.name
        with self._lock:
            self._sent_at[site] = time.monotonic()
            self._traffic(site).received += self._bytes_down[site]

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, message, received_at = client_task.client.name, client_task.result, time.monotonic()
        client_task.result = None  # FLARE keeps the task until the exchange is over; its tensors may go
        with self._lock:
            late = self._closed and site in self.outcome.too_slow
            if not late and (self._closed or site in self.outcome.facts or site in self.outcome.absent):
                return
            reply = read_reply(message)
            if late:
                if self.on_late is not None:
                    self.on_late(site, reply)
                return
            if reply.failure is not None and reply.failure.code is FailureCode.DEADLINE:
                self.outcome.overdue.append(site)
            self._traffic(site).sent += byte_count(reply.tensors)
            reply = replace(reply, trip=received_at - self._sent_at.get(site, self._started))
            reason = self._validate(site, reply)
            if reason is None:
                self.outcome.facts[site] = reply.facts
                self.outcome.trips[site] = reply.trip
            else:
                self.outcome.absent[site] = clean_text(reason)
            self._mark_done(site)
            self._last_validated = time.monotonic()

    def _validate(self, site: str, reply: Reply) -> str | None:
        """Return why a reply is not accepted, or None.

        This is the one place where replies are judged. Whatever a site sends costs that site its part in the
        exchange; nothing that it sends may raise here, in a thread of FLARE's that all sites share.
        """
        if reply.failure is not None:
            return str(reply.failure)
        if reply.round != self.request.round:
            return f"late: reply of round {shown(reply.round + 1)} in round {self.request.round + 1}"
        try:
            check_facts(self.request.task, reply.facts, site)
            return self.on_reply(site, reply)
        except MessageError as error:
            return str(Failure(FailureCode.MESSAGE, str(error)))
        except Exception as error:
            return f"E{int(FailureCode.UNEXPECTED)} reply could not be read ({type(error).__name__}: {error})"

    def _traffic(self, site: str) -> Traffic:
        return self.outcome.traffic.setdefault(site, Traffic())

    def _give_up_disconnected(self, controller: Controller, sites: list[str], deadline: float) -> None:
        """Give up sites that FLARE knows to be disconnected: they would miss the deadline anyway."""
        for site in sites:
            if controller.get_client_disconnect_time(site):
                with self._lock:
                    self._give_up(site, "disconnected", deadline)

    def _close(self, sites: list[str], reason: str) -> None:
        """Give up everyone who has not replied; nothing is accepted from here on."""
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
            elif reason.startswith(TOO_SLOW):
                self.outcome.too_slow.append(site)
            if waited is not None:
                self.outcome.waited[site] = waited
            self.outcome.silent.append(site)
            self._mark_done(site)

    def _mark_done(self, site: str) -> None:
        try:
            self.outcome.refuse(self.on_done(site))
        except Exception as error:
            reason = (
                f"E{int(FailureCode.UNEXPECTED)} reply could not be used ({type(error).__name__}: {error})"
            )
            self.outcome.refuse({site: clean_text(reason)})


def _count_nothing() -> tuple[int, int]:
    return 0, 0


def _cancel(controller: Controller, tasks: list[Task]) -> None:
    for task in tasks:
        controller.cancel_task(task)
