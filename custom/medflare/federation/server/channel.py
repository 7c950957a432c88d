# SPDX-License-Identifier: Apache-2.0
"""The server's channel to the sites of a run: builds requests, sends them by FLARE, waits for replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.federation.engine import Controller, FLContext, Signal
from medflare.federation.server.exchange import Counting, Exchange, WaitLimits
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.quorum import OPTIONAL, Quorum
from medflare.federation.server.roster import Roster, join_reasons
from medflare.federation.server.settings import RoundsSettings
from medflare.protections.registry import get_protection
from medflare.protocol.messages import FINISH, STEPS, Reply, Request, work_digest
from medflare.protocol.outcome import OnDone, OnLate, OnReply, Outcome, TooFewError
from medflare.wire.compression import compress
from medflare.wire.plan_codec import plan_to_json


class StoppedError(Exception):
    """The job was aborted from outside."""


@dataclass(slots=True, kw_only=True)
class Channel:
    """Requests to the sites of one run.

    Attributes:
        controller, fl_ctx, abort: FLARE's, of the running job.
        readable: whether the server can read the state that it sends.
    """

    controller: Controller
    fl_ctx: FLContext
    abort: Signal
    args: RoundsSettings
    run_id: str
    roster: Roster
    progress: ProgressReporter
    readable: bool

    def broadcast(
        self,
        task: str,
        on_reply: OnReply,
        sites: list[str] | None = None,
        plan: RoundPlan | None = None,
        tensors: State | None = None,
        options: dict[str, Any] | None = None,
        *,
        quorum: Quorum,
        on_done: OnDone | None = None,
        on_late: OnLate | None = None,
        counting: Counting | None = None,
    ) -> Outcome:
        """Send one request to several sites and wait for their replies.

        Args:
            on_reply: called with each good reply; returns why it cannot be accepted, or None.
            sites: all of the run without.
            on_done: called with each site of which nothing more is expected.
            on_late: as in `Exchange`; counting: as in `WaitLimits`.

        Raises:
            StoppedError: the job was aborted meanwhile.
        """
        request = self._request(task, plan, tensors, options)
        exchange = Exchange(request, on_reply, on_done or _refuse_nothing, on_late=on_late)
        return self._run(exchange, self.roster.sites if sites is None else sites, quorum, counting)

    def send_to_each(
        self, task: str, on_reply: OnReply, orders: Mapping[str, tuple[dict[str, Any], State]]
    ) -> Outcome:
        """Send each site a request of its own before round 0, and wait for the replies; no quorum.

        Args:
            orders: site -> options and tensors of its request.
        """
        requests = {
            site: self._request(task, None, tensors, options) for site, (options, tensors) in orders.items()
        }
        exchange = Exchange(self._request(task, None, None, None), on_reply, _refuse_nothing, requests)
        return self._run(exchange, sorted(orders), OPTIONAL)

    def in_round(self, plan: RoundPlan, min_responses: int | None = None) -> RoundChannel:
        """Return the channel for the steps of a protection in one round.

        Args:
            min_responses: as in `Quorum`; without, the quorum of each step.
        """
        return RoundChannel(self, plan, min_responses)

    def digest_work(self, plan: RoundPlan, tensors: State) -> str:
        """Return the digest of what sites are sent to train on, where the protection binds them to it."""
        if not get_protection(self.args.protection).binds_work:
            return ""
        return work_digest(plan_to_json(plan), compress(tensors, self.args.downlink))

    def require(
        self,
        outcome: Outcome,
        required: int,
        what: str,
        round_number: int = -1,
        mandatory: Collection[str] = (),
    ) -> None:
        """Raise TooFewError that names every missing site unless enough replies were accepted.

        Args:
            mandatory: sites whose reply must be among them.
            what: needs the replies, as the message begins.
            round_number: whose unavailable sites belong into the message.
        """
        accepted = len(outcome.facts)
        missing = sorted(set(mandatory) - set(outcome.facts))
        if accepted >= required and not missing:
            return
        if self.abort.triggered:
            raise StoppedError  # sites that noticed the abort first have already answered with a failure
        unavailable = self.roster.unavailable(round_number)
        reasons = join_reasons({**unavailable, **outcome.absent}, self.roster.sites)
        needed = f"{required} needed" + (f", {', '.join(missing)} among them" if missing else "")
        raise TooFewError(f"{what}: {accepted} accepted, {needed}. {reasons}", outcome)

    def _request(
        self, task: str, plan: RoundPlan | None, tensors: State | None, options: dict[str, Any] | None
    ) -> Request:
        args = self.args
        return Request(
            task=task,
            run_id=self.run_id,
            round=plan.round if plan else -1,
            roster=self.roster.sites,
            deadline=args.deadline,
            uplink=args.uplink,
            # What sites write as the result of the run must be as exact as what a server would have written.
            downlink="float32" if task == FINISH and not self.readable else args.downlink,
            protection=args.protection,
            seed=args.seed,
            plan=plan_to_json(plan) if plan else {},
            options=options or {},
            tensors=tensors or {},
        )

    def _run(
        self, exchange: Exchange, sites: list[str], quorum: Quorum, counting: Counting | None = None
    ) -> Outcome:
        args, stragglers = self.args, self.roster.stragglers & set(sites)
        limits = WaitLimits(
            quorum=quorum.required,
            min_responses=quorum.min_responses,
            deadline=args.deadline,
            margin=args.margin,
            straggler_timeout=args.straggler_timeout,
            # If all of them are stragglers there is nobody else to wait for: they have the whole deadline.
            stragglers=frozenset(stragglers if len(stragglers) < len(sites) else ()),
            mandatory=quorum.mandatory,
            share=quorum.share,
            counting=counting,
        )
        outcome = exchange.run(self.controller, sites, limits, self.fl_ctx, self.abort)
        if exchange.request.task not in STEPS:  # a site answers these while its worker is still busy
            replied = [site for site in sites if site not in outcome.silent]
            self.roster.record_replies(replied, outcome.overdue)
        if outcome.aborted:
            raise StoppedError
        return outcome


@dataclass(slots=True)
class RoundChannel:
    """The steps of a protection in one round; a `protections.base.StepChannel`."""

    channel: Channel
    plan: RoundPlan
    min_responses: int | None

    def send_and_receive(
        self, task: str, sites: Sequence[str], options: Mapping[str, Any], on_reply: OnReply, quorum: int
    ) -> Outcome:
        """Send one step to sites and wait for their answers."""
        wanted = Quorum(quorum, quorum if self.min_responses is None else self.min_responses)
        outcome = self.channel.broadcast(
            task, on_reply, list(sites), self.plan, options=dict(options), quorum=wanted
        )
        for site, reason in outcome.absent.items():
            self.channel.progress.event(
                "lost in the secure sum", round=self.plan.round, site=site, reason=reason
            )
        return outcome


def accept_any(site: str, reply: Reply) -> str | None:
    """Accept whatever came back without a failure."""
    return None


def _refuse_nothing(site: str) -> dict[str, str]:
    """No accepted reply waits for the other sites of the exchange."""
    return {}
