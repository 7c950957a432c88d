# SPDX-License-Identifier: Apache-2.0
"""Updates of stragglers that come after their exchange was closed, kept for the next one.

An update is a difference to the state that its site was sent, so it can be added to a later state; how much
it should count there is the job's `late`. What a site sends here is judged as in an exchange: only the update
that the server still waits for is kept, one of each site, and the aggregator checks it as any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import SamplesClients
from medflare.aggregation.staleness import staleness_weight
from medflare.egress.failures import MessageError
from medflare.federation.server.settings import Late, RoundsSettings
from medflare.protections.base import Protection
from medflare.protocol.messages import FIT, Reply
from medflare.protocol.replies import check_facts
from medflare.protocol.strict_model import shown


@dataclass(frozen=True, slots=True)
class Expected:
    """A straggler that still trains.

    Attributes:
        exchange: that it trains for.
        until: when it is given up, in monotonic seconds.
    """

    exchange: int
    until: float


@dataclass(slots=True)
class LateUpdates:
    """Stragglers that still train, and updates that came since the last exchange.

    FLARE hands replies over in threads of its own; the lock guards all fields.

    Args:
        mode: `late` of the job.
        gone: whether FLARE knows a site to be disconnected.
    """

    mode: Late
    gone: Callable[[str], bool]
    _collecting: int | None = None
    _expected: dict[str, Expected] = field(default_factory=dict)
    _arrived: dict[str, tuple[int, Reply]] = field(default_factory=dict)
    _open: dict[int, Callable[[], None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kept(self) -> bool:
        """True if late updates count at all."""
        return self.mode != "discard"

    def begin(self, exchange: int) -> None:
        """Note an exchange, whose late updates may come before it is known who is expected."""
        with self._lock:
            self._collecting = exchange

    def expect(self, sites: Mapping[str, float], exchange: int, release: Callable[[], None]) -> None:
        """Wait for the updates of stragglers of an exchange that has just been closed.

        Args:
            sites: site -> seconds after which it is given up.
            release: ends FLARE's task of the exchange; before that, FLARE's clients throw no reply away.
        """
        now = time.monotonic()
        with self._lock:
            self._collecting = None
            for site in sites:
                if site not in self._arrived:
                    self._expected[site] = Expected(exchange, now + sites[site])
            self._open[exchange] = release
        self._release()

    def receive(self, site: str, exchange: int, reply: Reply) -> str | None:
        """Keep a reply that came after its exchange was closed; return why not, or None."""
        with self._lock:
            expected = self._expected.pop(site, None)
            if site in self._arrived or (expected is None and exchange != self._collecting):
                return "nobody waits for it"
            if reply.failure is not None:
                return str(reply.failure)
            if reply.round != exchange:
                return f"it is of round {shown(reply.round + 1)}, and round {exchange + 1} was waited for"
            try:
                check_facts(FIT, reply.facts, site)
            except MessageError as error:
                return str(error)
            self._arrived[site] = (exchange, reply)
        return None

    def busy(self) -> dict[str, int]:
        """Return site -> exchange that it still trains for, or has just ended and waits to be counted."""
        with self._lock:
            arrived = {site: exchange for site, (exchange, _) in self._arrived.items()}
            return arrived | {site: expected.exchange for site, expected in self._expected.items()}

    def count(self) -> tuple[int, int]:
        """Return how many updates came since the last exchange, and how many still may, within their time."""
        now = time.monotonic()
        with self._lock:
            coming = [s for s, e in self._expected.items() if e.until > now and not self.gone(s)]
            return len(self._arrived), len(coming)

    def give_up(self) -> dict[str, str]:
        """Return site -> reason for each that is expected no longer: its time is over, or it is gone."""
        now = time.monotonic()
        with self._lock:
            over = {
                site: "its late update did not come within the deadline"
                for site, expected in self._expected.items()
                if expected.until <= now
            }
            over |= {site: "disconnected" for site in self._expected if self.gone(site)}
            for site in over:
                del self._expected[site]
        self._release()
        return over

    def close(self) -> None:
        """Wait for nobody any more: the last exchange of the run is over."""
        with self._lock:
            self._expected, self._arrived = {}, {}
        self._release()

    def _release(self) -> None:
        """End the tasks of exchanges of which nobody is expected any more."""
        with self._lock:
            wanted = {expected.exchange for expected in self._expected.values()}
            ended = [self._open.pop(exchange) for exchange in set(self._open) - wanted]
        for release in ended:
            release()

    def take(self) -> dict[str, tuple[int, Reply]]:
        """Return site -> (exchange it trained for, reply) of all that came, and forget them."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        return dict(sorted(arrived.items()))

    def weight(self, staleness: int) -> float:
        """Return the factor of the change of an update that is so many exchanges old."""
        return staleness_weight(staleness) if self.mode == "staleness_weighted" else 1.0


def straggler_problems(
    settings: RoundsSettings, rule_name: str, rule: AggregationRule, protection: Protection
) -> Iterator[str]:
    """Yield why a job's ways with slow sites are not possible, with what to use instead."""
    if settings.mode == "async":
        yield from _async_problems(settings, rule_name, rule, protection)
        return
    late = f"late is '{settings.late}'"
    if settings.late != "discard" and protection.server_reads != "updates":
        yield (
            f"{late}, and under {protection.words} an update belongs to the sum of its own round. Set late "
            "to 'discard'."
        )
    samples = rule.capability(SamplesClients) is not None
    if settings.late != "discard" and samples:
        yield (
            f"{late}, and rule '{rule_name}' samples its clients: an update of another round's sample would "
            "shift the mean. Set late to 'discard'."
        )
    if settings.mandatory_sites and samples:
        yield (
            f"the job has mandatory_sites, and rule '{rule_name}' samples who trains. Leave mandatory_sites "
            "out, or use rule 'weighted_mean'."
        )


_SYNC_ONLY = ("late", "min_responses", "mandatory_sites", "straggler_share", "latency_profiles")


def _async_problems(
    settings: RoundsSettings, rule_name: str, rule: AggregationRule, protection: Protection
) -> Iterator[str]:
    """Yield why a job cannot run in mode `async`."""
    if protection.server_reads != "updates":
        yield (
            f"mode is 'async', and under {protection.words} only the updates of one round and one state make "
            "a sum. Set mode to 'sync'."
        )
    if rule.capability(SamplesClients) is not None:
        yield (
            f"mode is 'async', in which every site trains all the time, and rule '{rule_name}' samples who "
            "trains. Use rule 'weighted_mean', or set mode to 'sync'."
        )
    defaults = type(settings).model_validate({})
    if given := [key for key in _SYNC_ONLY if getattr(settings, key) != getattr(defaults, key)]:
        yield (
            f"mode is 'async', in which a round ends with `buffer` updates and waits for nobody else; "
            f"{', '.join(given)} would say otherwise. Leave {'them' if len(given) > 1 else 'it'} out."
        )
