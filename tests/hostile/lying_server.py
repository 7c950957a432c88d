# SPDX-License-Identifier: Apache-2.0
"""A server that lies: it speaks the wire protocol with raw dictionaries to real executors of sites.

Nothing here uses medflare's own request classes, because a hostile server would not: a message is a FLARE DXO
whose meta holds whatever the attack puts there. Messages pass through FLARE's encoding on the way, so that an
attack meets what a site would really receive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fed_harness import SITES, FakeEngine, ToyExecutor
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs

from medflare.protocol.submitted_job import settings_digest

REQUEST, REPLY, FAILURE = "medflare_request", "medflare_reply", "medflare_failure"


@dataclass(frozen=True)
class Answer:
    """What a site sent back.

    Attributes:
        facts, tensors: of a good reply; both empty otherwise.
        failure: the site's failure as it travelled, or what FLARE's return code says; empty for a good reply.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """Whether the site gave nothing but a failure."""
        return bool(self.failure)

    @property
    def text(self) -> str:
        """The failure's text."""
        return str(self.failure.get("text", self.failure))


def over_the_wire(message: Shareable) -> Shareable:
    """Return a message as the other side receives it: encoded and decoded by FLARE."""
    return fobs.loads(fobs.dumps(message))


def request_fields(task: str, sites: Sequence[str] = SITES, **changes: Any) -> dict[str, Any]:
    """Return the fields of an ordinary request, with an attack's changes; `...` removes one."""
    plan: dict[str, Any] = {}
    number = changes.get("round", 0)
    if task in ("fit", "evaluate", "finish"):
        plan = {"round": number, "rounds": 5, "steps": 2}
    fields: dict[str, Any] = {
        "task": task,
        "run_id": "run-1",
        "round": -1 if task in ("prepare", "initialise") else number,
        "roster": list(sites),
        "deadline": 60.0,
        "uplink": "float32",
        "downlink": "float32",
        "protection": "none",
        "seed": 0,
        "plan": plan,
        "options": {},
    }
    return {name: value for name, value in {**fields, **changes}.items() if value is not ...}


def read_answer(reply: Shareable) -> Answer:
    """Return what a raw FLARE message from a site says."""
    if FAILURE in reply:
        return Answer(failure=dict(reply[FAILURE]))
    if reply.get_return_code() not in (None, ReturnCode.OK):
        return Answer(failure={"code": reply.get_return_code(), "text": reply.get_return_code()})
    dxo = from_shareable(reply)
    return Answer(facts=dict(dxo.meta[REPLY]["facts"]), tensors=dict(dxo.data))


class LyingServer:
    """Sends whatever it likes to sites; every site is a real executor with a worker in a thread.

    Args:
        root: folder below which each site has its kit, `root/<site>`.
        sites: their names.
        protection: what the job was submitted with.
        settings: of the toy learner, as `fed_toy.ToyLearner` has them.
        title: what the job's own configuration calls it.
    """

    def __init__(
        self,
        root: Path,
        sites: Sequence[str] = SITES,
        protection: str = "none",
        settings: Mapping[str, Any] | None = None,
        title: str = "",
    ) -> None:
        self.title = title
        self.root, self.sites, self.protection = root, tuple(sites), protection
        self.settings = dict(settings or {})
        self.executors = {site: self._executor() for site in sites}

    def _executor(self, resumes: str = "", **settings: Any) -> ToyExecutor:
        return ToyExecutor(
            job=self.title,
            method="toy",
            worker="thread",
            protection=self.protection,
            settings={**self.settings, **settings},
            resumes=resumes,
        )

    def deploy(self, site: str, resumes: str, **settings: Any) -> None:
        """A job comes to a site that goes on with the run of an earlier one; both are there at once."""
        self.executors[site] = self._executor(resumes, **settings)

    def restart(self, site: str) -> None:
        """The site's process starts again: what it remembers is what it wrote to disk."""
        self.executors[site].close()
        self.executors[site] = self._executor()

    def send(
        self,
        site: str,
        task: str,
        tensors: Mapping[str, Any] | None = None,
        *,
        job: str = "job",
        flare_task: str | None = None,
        **changes: Any,
    ) -> Answer:
        """Send one message to one site and return its answer.

        Args:
            tensors: that travel with it.
            job: id of the FLARE job in which the site receives it.
            flare_task: FLARE's name of the task, where it differs from what the message says.
            changes: fields of the request to replace; `...` removes one.
        """
        given: dict[str, Any] = {"protection": self.protection, **changes}
        if task == "prepare" and isinstance(given.get("options", {}), dict):
            submitted = {"settings_sha256": settings_digest("toy", self.settings)}
            given["options"] = {**submitted, **given.get("options", {})}
        fields = request_fields(task, self.sites, **given)
        data_kind = DataKind.WEIGHTS if tensors else DataKind.APP_DEFINED
        message = DXO(data_kind, data=dict(tensors or {}), meta={REQUEST: fields}).to_shareable()
        return self.send_raw(site, flare_task or task, message, job=job)

    def send_raw(self, site: str, flare_task: str, message: Shareable, job: str = "job") -> Answer:
        """Send any FLARE message at all."""
        engine = FakeEngine(site, self.root / site, {}, [], job)
        with engine.new_context() as ctx:
            ctx.set_peer_context(FLContext())
            reply = self.executors[site].execute(flare_task, over_the_wire(message), ctx, Signal())
        return read_answer(over_the_wire(reply))

    def prepare(self, **changes: Any) -> dict[str, Answer]:
        """Send every site an ordinary `prepare`."""
        return {site: self.send(site, "prepare", **changes) for site in self.sites}

    def initial_state(self, **changes: Any) -> dict[str, Any]:
        """Return the first site's initial tensors."""
        return self.send(self.sites[0], "initialise", **changes).tensors

    def close(self) -> None:
        """End every site's worker."""
        for executor in self.executors.values():
            executor.close()
