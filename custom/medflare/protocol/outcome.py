# SPDX-License-Identifier: Apache-2.0
"""The result of asking several sites for one task: who replied, who did not, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from medflare.core.errors import RunError
from medflare.core.run_record import Traffic
from medflare.protocol.messages import Reply

OnReply = Callable[[str, Reply], str | None]
"""(site, reply) -> reason if it cannot be accepted."""
OnDone = Callable[[str], Mapping[str, str]]
"""(site of which nothing more is expected) -> sites whose accepted reply is refused after all, and why."""


OnLate = Callable[[str, Reply], None]
"""(site that was given up for being too slow, its reply)."""


def _nothing() -> None:
    """No task is open."""


@dataclass(slots=True)
class Outcome:
    """Result of an exchange: every selected site is in `facts` or in `absent`, or the job was stopped.

    Attributes:
        facts: site -> facts of its accepted reply.
        absent: site -> reason, for every other site.
        silent: sites of `absent` that sent no reply at all, not even an error.
        traffic: site -> bytes of the messages.
        trips: site -> seconds from its task's leaving to its accepted reply.
        waited: site -> seconds after which it was given up, of those that were too slow or are disconnected.
        overdue: sites that passed the deadline, as they said themselves or as the server measured.
        late: site -> age in exchanges of its accepted update, where it is of an earlier one.
        too_slow: sites of `silent` that had no more time although their deadline has not passed.
        release: ends FLARE's task, which is kept open for those of them whose reply is still wanted.
        seconds: duration of the exchange.
        aborted: whether the job was stopped meanwhile.
    """

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    trips: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    late: dict[str, int] = field(default_factory=dict)
    too_slow: list[str] = field(default_factory=list)
    release: Callable[[], None] = _nothing
    seconds: float = 0.0
    aborted: bool = False

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Count accepted replies as absent after all."""
        for site, reason in reasons.items():
            self.facts.pop(site, None)
            self.absent[site] = reason

    def include(self, other: Outcome) -> None:
        """Add what became of replies that other sites sent before."""
        self.facts |= other.facts
        self.absent |= other.absent
        self.trips |= other.trips
        self.traffic |= other.traffic


class TooFewError(RunError):
    """Fewer sites replied than are needed.

    Attributes:
        outcome: who did not, and why.
    """

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome
