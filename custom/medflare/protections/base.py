# SPDX-License-Identifier: Apache-2.0
"""The contract of a protection: its facts, its side at the server and its side at a site.

`ServerProtection` and `SiteProtection` protect nothing as they stand; they are what a run without protection
uses, and what a real protection overrides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.tensor_names import SUM_PREFIX, TOTAL_PREFIX, with_prefix
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.egress.policy import Policy
from medflare.egress.seal import Seal
from medflare.protections.settings import ProtectionSettings
from medflare.protections.weighting import UpdateWeighting
from medflare.protocol.messages import FIT, Request
from medflare.protocol.outcome import OnReply, Outcome
from medflare.secure_aggregation.layout import Layout
from medflare.wire.compression import message_bytes
from medflare.wire.task_messages import TaskResult

SECURE = "secure_sum"
"""Key under which the steps of a protocol stand in options of requests and in facts of replies."""
ServerReads = Literal["updates", "sum", "nothing"]
"""Data that the server can read: each update, only their sum, or not even that."""


def keep_exact(tensors: Mapping[str, Tensor], purpose: str) -> State:
    """Return tensors that will be sealed without compressing them: the seal has its own number format."""
    return {name: value.detach().cpu() for name, value in tensors.items()}


def layout_of(shared: SharedSpec, sums: SharedSpec) -> Layout:
    """Return where each tensor of an update lies in its vectors; sums under the names they travel by."""
    return Layout.of(shared, {SUM_PREFIX + name: spec for name, spec in sums.items()})


# ---- what the two sides are told ---------------------------------------------------------------------------


class StepChannel(Protocol):
    """The way in which a protection sends the steps of its protocol to sites in the running round."""

    def send_and_receive(
        self, task: str, sites: Sequence[str], options: Mapping[str, Any], on_reply: OnReply, quorum: int
    ) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingRound:
    """An exchange of updates or of sums that is about to begin.

    Attributes:
        number: of the round, counted through the run.
        sites: who is selected; quorum: how many of them must reply.
        work: digest of the plan and the tensors that all of them will be sent.
        canary: whether it will be thrown away.
        sums: of an exchange of sums alone, which are they; None of updates.
    """

    number: int
    sites: list[str]
    quorum: int
    work: str
    canary: bool = False
    sums: SharedSpec | None = None


@dataclass(slots=True, kw_only=True)
class OpenedRound:
    """Sites that take part in a round, and additions to its training request beyond the plan.

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
class RunDeclaration:
    """Facts of a run that are known before round 1.

    Attributes:
        shared, sums: tensors of an update and of its declared sums.
        rounds: how many exchanges there will be.
        site_facts: site -> what its `SiteProtection.facts` returned.
        attempt: how many processes of the server have run this run before.
        folder: of the run at the server, which outlives that process; None where nothing does.
    """

    run_id: str
    shared: SharedSpec
    sums: SharedSpec
    weighting: UpdateWeighting
    rounds: int
    site_facts: Mapping[str, Mapping[str, Any]]
    attempt: int = 0
    folder: Path | None = None

    @property
    def layout(self) -> Layout:
        """Position of each tensor in the flat vectors; sums under the names they travel by."""
        return layout_of(self.shared, self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteContext:
    """Arguments from which the site's side of a protection is made.

    Attributes:
        site: its name; kit: root folder of its kit.
        policy: the site's own rules as they are now.
        memory: folder of what this site must remember of the run, also after a restart.
        job: what the job trains, beside a plan: method and settings; JSON types.
    """

    site: str
    kit: Path
    policy: Policy
    memory: Path
    job: Mapping[str, Any] = field(default_factory=dict)


# ---- the server's side -------------------------------------------------------------------------------------


class ServerProtection:
    """The server's side of a run without protection.

    Attributes:
        server_reads: what the server can read.
    """

    server_reads: ClassVar[ServerReads] = "updates"

    @property
    def sealed(self) -> bool:
        """True if updates come in a form of which at most a sum can be read."""
        return self.server_reads != "updates"

    @property
    def readable(self) -> bool:
        """True if the server itself can read the state of the run."""
        return self.server_reads != "nothing"

    def expect(self, declaration: RunDeclaration) -> None:
        """Take what was declared before round 1; ConfigError where the protection cannot work with it."""

    def bytes_up(self, shared: SharedSpec, uplink: str) -> int:
        """Return the bytes of an update, after `expect`; 0 where nobody can tell before the first one."""
        return message_bytes(shared, uplink)

    def open_round(self, upcoming: UpcomingRound, channel: StepChannel) -> OpenedRound:
        """Go through the steps before the sites train."""
        return OpenedRound(sites=upcoming.sites)

    def add_sealed(self, site: str, facts: Mapping[str, Any], tensors: State) -> None:
        """Add a sealed update; UpdateError if it cannot be added, as always where nothing is sealed."""
        raise UpdateError("is sealed, and the updates of this run are not.")

    def open_sum(self, channel: StepChannel) -> Update | None:
        """Return what the accepted updates come to: their weighted mean and the totals of their sums.

        None where there is no sum that the server can read. RunError where too few sites are left to open it.
        """
        return None

    def commit(self) -> None:
        """Make the last opened sum part of the state; a canary's is opened and not committed."""

    def outgoing(self, state: State, totals: State) -> tuple[State, dict[str, Any]]:
        """Return (tensors, options) that bring the state of the run to a site."""
        return {**state, **with_prefix(totals, TOTAL_PREFIX)}, {}

    def state_values(self) -> dict[str, Any]:
        """Return what must be saved beside the state's tensors to open it again; JSON types."""
        return {}

    def load_state(self, values: Mapping[str, Any], tensors: State) -> State:
        """Take back what `outgoing` and `state_values` made of a state; return the state's own tensors."""
        return dict(tensors)

    def report(self) -> dict[str, Any]:
        """Return what the last round's protocol did, for run.json."""
        return {}


# ---- a site's side -----------------------------------------------------------------------------------------


class SiteProtection:
    """A site's side of a run without protection."""

    def declare(self, shared: SharedSpec, sums: SharedSpec, describe: Mapping[str, Any]) -> None:
        """Take what this site's worker said in `prepare`."""

    def declare_sums(self, specs: Mapping[str, SharedSpec]) -> None:
        """Take the sums of exchanges that hold nothing else, by exchange, as the worker said in `prepare`."""

    def place(self, request: Request) -> int | None:
        """Return the place of the round that a request opens (`egress.job_memory`); None where it opens none.

        A round is one of updates, or of sums in their place. Measuring opens none.
        """
        return request.place if request.task == FIT else None

    def facts(self) -> dict[str, Any]:
        """Return what the server must know of this site before round 1; nothing secret."""
        return {}

    def readable_tensors(self, request: Request) -> State:
        """Return the request's tensors as the worker reads them."""
        return request.tensors

    def export(self, request: Request, folder: Path) -> None:
        """Write the final adapter into `folder` where only sites can read it."""

    def answer_step(self, request: Request) -> dict[str, Any]:
        """Do the site's part in a step of the protocol.

        Raises:
            UpdateError: this protection has no such step.
        """
        raise UpdateError(f"'{request.task}' is no step of this job's protection '{request.protection}'.")

    def check_training(self, request: Request) -> None:
        """Refuse a request to train before the worker sees it; UpdateError says why."""

    def check_measuring(self, request: Request) -> None:
        """Refuse a request to measure before the worker sees it; UpdateError says why."""

    def seal(self, request: Request, result: TaskResult) -> Seal | None:
        """Return what closes the tensors of an answer before they leave; None where nothing does.

        Under a protection an answer that nothing closes leaves without what was measured.
        """
        return None

    def apply_policy(self, policy: Policy) -> None:
        """Take the site's rules as they are at this request."""


# ---- a protection ------------------------------------------------------------------------------------------


class Protection(ABC):
    """One way to keep updates from the server's eyes; `registry.PROTECTIONS` lists one object of each.

    Attributes:
        name: as a job's setting `protection` has it.
        words: what it is called in messages.
        seal: what it is called in a site's policy and in its ledger; empty for none.
        server_reads: what the server can read of the updates.
        min_sites: how many sites a sum must be over to hide each of them.
        binds_work: whether sites agree on a digest of what they are sent to train on.
        settings_read: those of ProtectionSettings that it obeys; a job that gives another is refused.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    seal: ClassVar[str] = ""
    server_reads: ClassVar[ServerReads] = "updates"
    min_sites: ClassVar[int] = 1
    binds_work: ClassVar[bool] = False
    settings_read: ClassVar[frozenset[str]] = frozenset(ProtectionSettings.model_fields)

    @property
    def seals(self) -> list[str]:
        """The seals its updates carry, as records and policies list them."""
        return [self.seal] if self.seal else []

    @abstractmethod
    def server_side(self, settings: ProtectionSettings, kit: Path) -> ServerProtection:
        """Return the server's side; ConfigError where its kit lacks what the protection needs."""

    @abstractmethod
    def site_side(self, context: SiteContext) -> SiteProtection:
        """Return a site's side; ConfigError where its kit lacks what the protection needs."""
