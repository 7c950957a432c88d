# SPDX-License-Identifier: Apache-2.0
"""Long runs and many sites: memory and seconds of a round stay what they were.

Server and sites run in this one process, so its memory is that of all of them. The numbers are printed with
`-s`; docs/results/faults.md has them.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from fed_harness import completed
from nvflare.apis.shareable import Shareable

from medflare.protocol.messages import FIT

EVERY = os.environ.get("FAULTS") == "all"
SMALL_RATE = 1e-10
"""Of a regression with so many values: with the usual one it would not converge, and be refused."""
ROUNDS, SITES = (300, 5) if EVERY else (60, 3)


@dataclass
class Gauge:
    """Takes memory and time when a round begins for the first site.

    Attributes:
        bytes, seconds, processor: of the process and since the start, by round; the last in seconds of all
            threads, which neighbours on the machine do not change.
    """

    bytes: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    processor: dict[int, float] = field(default_factory=dict)

    def __call__(self, site: str, task: str, message: Shareable) -> None:
        if (site, task) == ("site-01", FIT):
            number = message.get_header("current_round")
            if number % 10 == 0:
                gc.collect()
                self.bytes[number] = psutil.Process().memory_info().rss
            self.seconds[number], self.processor[number] = time.monotonic(), time.process_time()

    def typical(self, first: int, last: int) -> float:
        """The median of the memory in these rounds: tensors on their way move it by a twentieth."""
        return statistics.median(size for number, size in self.bytes.items() if first <= number < last)

    def a_round(self, first: int, last: int) -> float:
        """Seconds of a round, the mean of these."""
        return (self.seconds[last] - self.seconds[first]) / (last - first)

    def rounds(self, first: int, last: int) -> str:
        """What a round takes, the mean of these, in words."""
        processor = (self.processor[last] - self.processor[first]) / (last - first)
        return f"{self.a_round(first, last):.2f} s a round, {processor:.2f} s of processor time"


def names(count: int) -> tuple[str, ...]:
    return tuple(f"site-{number + 1:02}" for number in range(count))


@pytest.mark.long
@pytest.mark.parametrize("uplink", ["float32", "int8"])
def test_memory_is_flat_over_hundreds_of_rounds(federation: Any, uplink: str) -> None:
    gauge = Gauge()
    settings = {"width": 200_000, "rate": SMALL_RATE}
    args = {"num_rounds": ROUNDS, "uplink": uplink, "evaluate_every": 5}
    record = completed(
        federation(
            sites=names(SITES),
            settings=settings,
            controller=args,
            mislead=gauge,
            worker="thread",
            timeout=3600.0,
        )
    )
    assert len(record.rounds) == ROUNDS
    early, late = gauge.typical(ROUNDS // 5, ROUNDS // 2), gauge.typical(ROUNDS - ROUNDS // 4, ROUNDS)
    begin, end = gauge.a_round(10, 30), gauge.a_round(ROUNDS - 21, ROUNDS - 1)
    print(f"\n{uplink}: {early / 1e6:.0f} MB, {late / 1e6:.0f} MB; {begin:.3f} s, {end:.3f} s a round")
    assert late <= 1.05 * early


@pytest.mark.long
@pytest.mark.parametrize("count", [5, 10, 25, 50] if EVERY else [5])
@pytest.mark.parametrize("protection", ["none", "masking"])
def test_many_sites(federation: Any, protection: str, count: int) -> None:
    gauge, rounds = Gauge(), 4
    before = psutil.Process().memory_info().rss
    args = {"num_rounds": rounds, "protection": protection, "evaluate_every": 0}
    run = federation(
        sites=names(count),
        settings={"width": 100_000, "rate": SMALL_RATE},
        controller=args,
        mislead=gauge,
        timeout=3600.0,
    )
    record = completed(run)
    assert [len(entry.accepted) for entry in record.rounds] == [count] * rounds
    used = (psutil.Process().memory_info().rss - before) / 1e6
    print(f"\n{protection}, {count} sites: {gauge.rounds(1, rounds - 1)}, {used:.0f} MB more")


@pytest.mark.long
@pytest.mark.skipif(not EVERY, reason="a minute: make test-faults")
@pytest.mark.parametrize("count", [25, 50, 100])
def test_a_hundred_sites_by_the_simulated_clock(federation: Any, count: int) -> None:
    """Through FLARE's controller and executors; what a round takes by the clock stands in the record."""
    gauge, rounds = Gauge(), 4
    before = psutil.Process().memory_info().rss
    profiles = {
        name: {"seconds_per_example": 0.5 + 0.05 * number, "down": 1e6, "up": 1e6}
        for number, name in enumerate(names(count))
    }
    run = federation(
        sites=names(count),
        settings={"width": 100_000, "rate": SMALL_RATE},
        controller={"num_rounds": rounds, "evaluate_every": 0, "latency_profiles": profiles},
        mislead=gauge,
        timeout=3600.0,
    )
    record = completed(run)
    assert [len(entry.accepted) for entry in record.rounds] == [count] * rounds
    used = (psutil.Process().memory_info().rss - before) / 1e6
    clock = [entry.simulated_seconds for entry in record.rounds]
    assert clock == sorted(clock)
    print(
        f"\nsimulated clock, {count} sites: {gauge.rounds(1, rounds - 1)} on this machine, "
        f"{clock[0]:.0f} s a round by the clock, {used:.0f} MB more"
    )
