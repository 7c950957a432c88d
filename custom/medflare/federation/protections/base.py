# SPDX-License-Identifier: Apache-2.0
"""The two sides of a protection, and the one that protects nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from medflare.core.tensor_names import SUM_PREFIX, TOTAL_PREFIX, with_prefix
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.egress.chain import Seal
from medflare.egress.policy import Policy
from medflare.federation.messages import Request
from medflare.federation.protections.weights import Weighing
from medflare.federation.server.exchange import OnReply, Outcome
from medflare.secure_aggregation.layout import Layout
from medflare.wire.compression import message_bytes
from medflare.wire.task_messages import TaskResult

SECURE = "secure_sum"
"""Under this key the steps of a protocol stand in options of requests and in facts of replies."""


def exact(tensors: Mapping[str, Tensor], kind: str) -> State:
    """How tensors are compressed that will be sealed: not at all, the seal has its own numbers."""
    return {name: value.detach().cpu() for name, value in tensors.items()}


class Talk(Protocol):
    """One exchange of the running round with some sites."""

    def __call__(
        self, task: str, sites: Sequence[str], options: Mapping[str, Any], take: OnReply, quorum: int
    ) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round that is about to begin.

    Attributes:
        sites: who is asked; quorum: how many of them are enough.
        work: digest of the plan and the tensors that all of them will be sent.
        canary: whether it will be thrown away.
        sums: of an exchange of sums alone, which are they.
    """

    number: int
    sites: list[str]
    quorum: int
    work: str
    canary: bool = False
    sums: SharedSpec | None = None


@dataclass(slots=True, kw_only=True)
class Opened:
    """Who takes part in a round and what its training request says beyond the plan.

    Attributes:
        absent: site -> reason, for those who were lost in the protocol's first steps; `silent` and `waited`
            of them as in `Outcome`.
    """

    sites: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    waited: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is known of a run before round 1.

    Attributes:
        rounds: how many there will be.
        described: site -> what its `SiteProtection.facts` said.
    """

    run_id: str
    shared: SharedSpec
    sums: SharedSpec
    weighing: Weighing
    rounds: int
    described: Mapping[str, Mapping[str, Any]]

    @property
    def layout(self) -> Layout:
        """Where each tensor lies; sums under the names they travel by."""
        return layout_of(self.shared, self.sums)


def layout_of(shared: SharedSpec, sums: SharedSpec) -> Layout:
    """The layout of an update of these tensors and sums."""
    return Layout.of(shared, {SUM_PREFIX + name: spec for name, spec in sums.items()})


class ServerProtection:
    """The server's side of a run without protection; what a real one overrides.

    Attributes:
        sealed: whether updates come in a form of which only a sum can be read.
        readable: whether the server itself can read that sum.
    """

    sealed = False
    readable = True

    def expect(self, declared: Declared) -> None:
        """Takes what was declared before round 1; ConfigError where the protection cannot work with it."""

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        """Bytes of an update, once `expect` was called; 0 where nobody can tell before the first one."""
        return message_bytes(shared, uplink)

    def open(self, coming: Round, talk: Talk) -> Opened:
        """The steps before the sites train."""
        return Opened(sites=coming.sites)

    def take(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        """A sealed update; UpdateError if it cannot be added."""
        raise NotImplementedError

    def close(self, talk: Talk) -> Update | None:
        """What the accepted updates come to: their weighted mean and the totals of their sums.

        None where the server cannot read it. RunError where too few sites are left to open it.
        """
        raise NotImplementedError

    def keep(self) -> None:
        """Makes the last closed round part of the state; a canary is closed and not kept."""

    def down(self, state: State, totals: State) -> tuple[State, dict[str, Any]]:
        """(tensors, options) that bring the state of the run to a site."""
        return {**state, **with_prefix(totals, TOTAL_PREFIX)}, {}

    def values(self) -> dict[str, Any]:
        """What must be saved beside the state's tensors to open it again; JSON types."""
        return {}

    def report(self) -> dict[str, Any]:
        """What the last round's protocol did, for run.json."""
        return {}


class SiteProtection:
    """A site's side of a run without protection; what a real one overrides."""

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        """Takes what this site's worker said in `prepare`."""

    def declare_sums(self, specs: Sequence[SharedSpec]) -> None:
        """Takes the sums of exchanges that hold nothing else, as the worker said in `prepare`."""

    def facts(self) -> dict[str, Any]:
        """What the server must know of this site before round 1; nothing secret."""
        return {}

    def opened(self, request: Request) -> State:
        """The request's tensors as the worker reads them."""
        return request.tensors

    def export(self, request: Request, folder: Path) -> None:
        """Writes the final adapter into `folder` where only sites can read it."""

    def answer(self, request: Request) -> dict[str, Any]:
        """The site's part in a step of the protocol."""
        raise NotImplementedError

    def seal(self, request: Request, result: TaskResult) -> Seal | None:
        """What closes the tensors of an update before they leave; None where nothing does."""
        return None

    def obey(self, policy: Policy) -> None:
        """Takes the site's rules as they are at this request."""
