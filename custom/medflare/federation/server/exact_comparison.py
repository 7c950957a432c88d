# SPDX-License-Identifier: Apache-2.0
"""The server's side of exact comparison: it deals pairs, passes encrypted elements on, learns sizes (6.1).

Once in a run, before round 1: sizes of a site's graph before and after a change would tell the triples that
changed. Whatever goes wrong with a pair leaves it at the typical distance, with the reason in the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import NeedsExactSizes
from medflare.core.errors import RunError
from medflare.core.tensors import State
from medflare.egress.declaration import (
    ANSWER,
    COMPARE,
    COUNT,
    COUNTED,
    FEW,
    MANY,
    NO_GRAPH,
    NO_PACKAGE,
    OFFER,
    REQUEST,
    RESPONSE,
    SETUP,
    fact_problems,
    message_problems,
)
from medflare.federation.messages import Reply
from medflare.federation.outcome import OnReply, Outcome
from medflare.federation.server.channel import Channel
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.run_recorder import RunRecorder
from medflare.federation.server.sketch_exchange import NO_KNOWLEDGE, REFUSED
from medflare.knowledge.private_intersection import (
    LEAST,
    MOST,
    exact_distances,
    message_bytes,
    smallest_eigenvalue,
)
from medflare.knowledge.site_pairs import MEMORY, SitePair, waves
from medflare.knowledge.sketches import sites_outside_majority

WHY = {
    NO_GRAPH: NO_KNOWLEDGE,
    NO_PACKAGE: "openmined.psi is not installed there; `pip install 'medflare[psi]'`",
    FEW: f"its graph has fewer than {LEAST} triples, of which sizes would tell single ones",
    MANY: f"its graph has more than {MOST:,} triples; compare by sketches (rule_settings.distances=sketches)",
}
"""State -> why a site tells no size."""
Orders = Mapping[str, tuple[dict[str, Any], State]]
"""Site -> options and tensors of its request."""
Ask = Callable[[str, OnReply, Orders], Outcome]
"""(task, what to do with replies, who is asked for what) -> what came of it."""


@dataclass(slots=True)
class Comparison:
    """What the server has learnt of the sites' graphs.

    Attributes:
        ask: brings requests to sites.
        sizes: elements of the sites that told them; texts: of how many texts.
        without: reason for every site that takes no part any more; failed: and for every pair that was not
            compared.
        shared: elements that the pairs share; moved: bytes of the messages, from and to sites.
        memory: most bytes of encrypted elements that are held at once.
    """

    ask: Ask
    memory: int = MEMORY
    sizes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    failed: dict[SitePair, str] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=lambda: {"from_sites": 0, "to_sites": 0})
    waves: int = 0
    seconds: float = 0.0
    _keys: dict[str, str] = field(default_factory=dict)
    _vocabularies: dict[str, str] = field(default_factory=dict)
    _held: dict[str, Tensor] = field(default_factory=dict)

    def run(self, sites: Sequence[str]) -> None:
        """Compares the graphs of all pairs of sites that take part.

        Raises RunError where all sites told a size and no two have the same key.
        """
        started = time.monotonic()
        self._absent(self._asked(COUNT, self._count, {site: ({}, State()) for site in sites}))
        self._agree(sites)
        dealt = waves({site: n for site, n in self.sizes.items() if n}, self.memory)
        for wave in dealt:
            self._wave(wave)
        self.waves, self.seconds = len(dealt), round(time.monotonic() - started, 3)

    def _count(self, site: str, reply: Reply) -> str | None:
        """Takes a site's size, or why it tells none."""
        problems = fact_problems(COUNT, reply.facts, site)
        if problems:
            return "; ".join(problems)
        if reply.facts["state"] != COUNTED:
            return WHY[reply.facts["state"]]
        count = reply.facts["elements"]
        if 0 < count < LEAST or count > MOST:
            return f"says its graph has {count} triples; expected none, or {LEAST} to {MOST:,}"
        self.sizes[site], self.texts[site] = count, reply.facts["examples"]
        self._keys[site] = reply.facts["key"]
        if "vocabulary" in reply.facts:
            self._vocabularies[site] = reply.facts["vocabulary"]
        return None

    def _agree(self, sites: Sequence[str]) -> None:
        """Leaves out the sites whose key or context is not that of most sites."""
        groups: dict[str, list[str]] = {}
        for site, key in sorted(self._keys.items()):
            groups.setdefault(key, []).append(site)
        if len(groups) < 2:
            return
        usual = max(groups, key=lambda key: len(groups[key]))
        if len(groups[usual]) == 1 and len(self._keys) == len(sites):
            told = ", ".join(f"{site} ({key[:8]})" for site, key in self._keys.items())
            raise RunError(
                "no two sites have the same key and context under `knowledge`, so no two graphs can be "
                f"compared: {told}. Give all sites the same key file and context."
            )
        for site, key in self._keys.items():
            if key != usual or len(groups[usual]) == 1:
                self.without[site] = f"its key ({key[:8]}) is not that of other sites ({usual[:8]})"
                del self.sizes[site]

    def _wave(self, wave: Sequence[SitePair]) -> None:
        """The pairs of a wave, step by step; their messages are let go at its end."""
        left = self._still(wave)
        orders: dict[str, tuple[dict[str, Any], State]] = {}
        for pair in left:
            for site, partner in (pair, (pair.holder, pair.asker)):
                asks = site == pair.asker
                said = {"partner": partner, "elements": self.sizes[partner], "asks": asks}
                orders[site] = (said, State())
        left = self._step(OFFER, left, orders, self._message)
        requests = {p.holder: ({"partner": p.asker}, {REQUEST: self._held.pop(p.asker)}) for p in left}
        setups = {p.asker: self._held.pop(p.holder) for p in left}
        left = self._step(ANSWER, left, requests, self._message)
        ends = {
            p.asker: ({"partner": p.holder}, {SETUP: setups[p.asker], RESPONSE: self._held.pop(p.holder)})
            for p in left
        }
        self._step(COMPARE, left, ends, self._size)
        self._held.clear()

    def _still(self, wave: Iterable[SitePair]) -> list[SitePair]:
        """The pairs of which both sites take part still."""
        left = []
        for pair in wave:
            gone = [site for site in pair if site in self.without]
            if gone:
                self.failed[pair] = f"{gone[0]}: {self.without[gone[0]]}"
            else:
                left.append(pair)
        return left

    def _step(
        self,
        task: str,
        pairs: Sequence[SitePair],
        orders: Orders,
        take: Callable[[SitePair, str, str, Reply], str | None],
    ) -> list[SitePair]:
        """One exchange with the sites of these pairs; those of them that go on."""
        if not pairs:
            return []
        of = {site: pair for pair in pairs for site in pair}

        def judge(site: str, reply: Reply) -> str | None:
            problems = fact_problems(task, reply.facts, site)
            return "; ".join(problems) if problems else take(of[site], site, task, reply)

        outcome = self._asked(task, judge, orders)
        self._absent(outcome, only_lasting=True)
        for site, reason in sorted(outcome.absent.items()):
            self.failed.setdefault(of[site], f"{site}: {reason}")
        return [pair for pair in pairs if pair not in self.failed]

    def _message(self, pair: SitePair, site: str, task: str, reply: Reply) -> str | None:
        """Takes encrypted elements; the reason where a message is not what was asked for."""
        problems = message_problems(task, reply.tensors)
        if problems:
            return "; ".join(problems)
        ((name, message),) = reply.tensors.items()
        wanted = RESPONSE if task == ANSWER else (REQUEST if site == pair.asker else SETUP)
        most = message_bytes(self.sizes[pair.holder if name == SETUP else pair.asker])
        if name != wanted or reply.facts["partner"] == site or reply.facts["partner"] not in pair:
            return f"sent a {name} for {reply.facts['partner']}, where another message was asked for"
        if message.numel() > most:
            return f"sent a {name} of {message.numel()} bytes; {most} are the most for the sizes told"
        self._held[site] = message
        return None

    def _size(self, pair: SitePair, site: str, task: str, reply: Reply) -> str | None:
        """Takes the size of what a pair shares."""
        both, most = reply.facts["shared"], min(self.sizes[s] for s in pair)
        if reply.facts["partner"] != pair.holder or both > most:
            return f"says {both} triples are shared with {reply.facts['partner']}; expected 0 to {most}"
        self.shared[pair] = both
        return None

    def _asked(self, task: str, take: OnReply, orders: Orders) -> Outcome:
        outcome = self.ask(task, take, orders)
        for traffic in outcome.traffic.values():
            self.moved["from_sites"] += traffic.sent
            self.moved["to_sites"] += traffic.received
        return outcome

    def _absent(self, outcome: Outcome, only_lasting: bool = False) -> None:
        """Leaves out who gave no size, and who is silent or refuses, so that nobody waits for it again."""
        for site, reason in outcome.absent.items():
            if not only_lasting or site in outcome.silent or reason.startswith(REFUSED):
                self.without.setdefault(site, reason)

    def report(self, sites: Sequence[str]) -> dict[str, Any]:
        """For run.json, JSON types; `distances` as the rule sees them, in the order of `sites`."""
        found: dict[str, Any] = {
            "sites": {
                site: {"elements": count, "texts": self.texts[site], "empty": count == 0}
                for site, count in sorted(self.sizes.items())
            },
            "without": dict(sorted(self.without.items())),
            "other_vocabulary": sites_outside_majority(
                {s: d for s, d in self._vocabularies.items() if s in self.sizes}
            ),
            "pairs": sorted(
                ({"sites": sorted(pair), "shared": both} for pair, both in self.shared.items()),
                key=lambda found: found["sites"],
            ),
            "not_compared": sorted(
                ({"sites": sorted(pair), "why": why} for pair, why in self.failed.items()),
                key=lambda found: found["sites"],
            ),
            "waves": self.waves,
            "bytes": dict(self.moved),
            "seconds": self.seconds,
        }
        if self.shared or (0 in self.sizes.values() and len(self.sizes) > 1):
            matrix = exact_distances(self.sizes, self.shared, sites)
            found["distances"] = {"order": list(sites), "matrix": matrix.round(6).tolist()}
            found["smallest_eigenvalue"] = round(smallest_eigenvalue(matrix), 6)
        return found


def compare_graphs(
    rule: AggregationRule, channel: Channel, recorder: RunRecorder, progress: ProgressReporter
) -> None:
    """Compare the sites' knowledge graphs exactly, for a rule that wants it.

    Raises:
        RunError: no two sites have the same key.
        StoppedError: the job was aborted.
    """
    comparing, sites = rule.capability(NeedsExactSizes), channel.roster.eligible(0)
    if comparing is None:
        return
    comparison = Comparison(channel.send_to_each)
    comparison.run(sites)
    comparing.set_exact_sizes(comparison.sizes, comparison.shared)
    recorder.record.preparation["exact"] = comparison.report(channel.roster.sites)
    recorder.write()
    progress.event(
        "exact sizes",
        seconds=comparison.seconds,
        compared=len(comparison.shared),
        failed=len(comparison.failed),
        without=comparison.without,
    )
