# SPDX-License-Identifier: Apache-2.0
"""A clock of the server's exchanges that a test puts forward, so that a deadline passes without a race."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from medflare.federation.server import exchange as exchanges


@dataclass
class Asked:
    """An exchange that runs, and which of its sites a test keeps back."""

    exchange: exchanges.Exchange
    sites: list[str]
    limits: exchanges.Limits
    kept: set[str] = field(default_factory=set)
    passed: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def left(self) -> set[str]:
        """Who has not answered."""
        with self.exchange._lock:
            return set(self.sites) - {*self.exchange.outcome.facts, *self.exchange.outcome.absent}


class ExchangeClock:
    """Stands in for the module `time` in exchanges: real seconds, and a whole deadline at once.

    The deadline of an exchange passes as soon as it waits for nobody but sites that never answer.

    Attributes:
        gone: sites that answer nothing in the whole run.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, self.gone = 0.0, set[str]()
        run = exchanges.Exchange.run

        def noted(
            exchange: exchanges.Exchange, controller: Any, sites: list[str], limits: Any, *more: Any
        ) -> Any:
            self.asked = asked = Asked(exchange, sites, limits)
            try:
                return run(exchange, controller, sites, limits, *more)
            finally:
                asked.over.set()

        monkeypatch.setattr(exchanges, "time", self)
        monkeypatch.setattr(exchanges.Exchange, "run", noted)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        """What an exchange does between two looks at who has answered."""
        time.sleep(seconds)
        asked, left = self.asked, self.asked.left()
        if left and left <= asked.kept | self.gone and not asked.passed:
            asked.passed = True
            self.ahead += asked.limits.deadline + asked.limits.margin

    def miss(self, site: str) -> None:
        """Keeps a site's thread back until the exchange that asked it is over."""
        asked = self.asked
        asked.kept.add(site)
        asked.over.wait()
