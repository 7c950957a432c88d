# SPDX-License-Identifier: Apache-2.0
"""The server's side of exact comparison (DD-3): it orders pairs, relays encrypted elements, learns sizes.

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
from medflare.protocol.messages import Reply
from medflare.protocol.outcome import OnReply, Outcome

WHY = {
    NO_GRAPH: NO_KNOWLEDGE,
    NO_PACKAGE: "openmined.psi is not installed there; `pip install 'medflare[psi]'`",
    FEW: f"its graph has fewer than {LEAST} triples, of which sizes would tell single ones",
    MANY: f"its graph has more than {MOST:,} triples; compare by sketches (rule_settings.distances=sketches)",
}
"""State -> why a site has no size."""
Requests = Mapping[str, tuple[dict[str, Any], State]]
"""Site -> options and tensors of its request."""
SendToEach = Callable[[str, OnReply, Requests], Outcome]
"""(task, what to do with replies, requests) -> who replied; as `Channel.send_to_each`."""


@dataclass(slots=True)
class Comparison:
    """Compares the graphs of all pairs of sites, and keeps what the server learns of them.

    Attributes:
        send: sends requests to sites and returns who replied.
        memory: most bytes of encrypted elements that are held at once.
        sizes: site -> elements of its graph; texts: site -> texts it was made from.
        without: site -> why it takes no part any more.
        failed: pair -> why it was not compared.
        shared: pair -> elements that both graphs have.
        transferred: bytes of all messages from and to sites.
    """

    send: SendToEach
    memory: int = MEMORY
    sizes: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    failed: dict[SitePair, str] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    transferred: dict[str, int] = field(default_factory=lambda: {"from_sites": 0, "to_sites": 0})
    waves: int = 0
    seconds: float = 0.0
    _keys: dict[str, str] = field(default_factory=dict)
    _vocabularies: dict[str, str] = field(default_factory=dict)
    _held: dict[str, Tensor] = field(default_factory=dict)

    def run(self, sites: Sequence[str]) -> None:
        """Compare the graphs of all pairs of sites that take part.

        Raises:
            RunError: all sites stated a size and no two have the same key.
        """
        started = time.monotonic()
        counts = self._exchange(COUNT, self._record_size, {site: ({}, State()) for site in sites})
        self._exclude_absent(counts)
        self._exclude_other_keys(sites)
        schedule = waves({site: n for site, n in self.sizes.items() if n}, self.memory)
        for wave in schedule:
            self._compare_wave(wave)
        self.waves, self.seconds = len(schedule), round(time.monotonic() - started, 3)

    def _record_size(self, site: str, reply: Reply) -> str | None:
        """Record a site's size; return the reason where it states none that can be used."""
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

    def _exclude_other_keys(self, sites: Sequence[str]) -> None:
        """Exclude the sites whose key or context is not that of most sites.

        Elements under different keys are never equal, so their comparison would find nothing in common.
        """
        groups: dict[str, list[str]] = {}
        for site, key in sorted(self._keys.items()):
            groups.setdefault(key, []).append(site)
        if len(groups) < 2:
            return
        usual = max(groups, key=lambda key: len(groups[key]))
        if len(groups[usual]) == 1 and len(self._keys) == len(sites):
            keys = ", ".join(f"{site} ({key[:8]})" for site, key in self._keys.items())
            raise RunError(
                "no two sites have the same key and context under `knowledge`, so no two graphs can be "
                f"compared: {keys}. Give all sites the same key file and context."
            )
        for site, key in self._keys.items():
            if key != usual or len(groups[usual]) == 1:
                self.without[site] = f"its key ({key[:8]}) is not that of other sites ({usual[:8]})"
                del self.sizes[site]

    def _compare_wave(self, wave: Sequence[SitePair]) -> None:
        """Compare the pairs of a wave in three steps, and free their messages at its end.

        Offer: both sites send their elements, encrypted. Answer: the holder encrypts the asker's a second
        time. Compare: the asker counts the elements that both have.
        """
        pairs = self._pairs_taking_part(wave)
        offers: dict[str, tuple[dict[str, Any], State]] = {}
        for pair in pairs:
            for site, partner in (pair, (pair.holder, pair.asker)):
                asks = site == pair.asker
                options = {"partner": partner, "elements": self.sizes[partner], "asks": asks}
                offers[site] = (options, State())
        pairs = self._step(OFFER, pairs, offers, self._keep_message)
        answers = {p.holder: ({"partner": p.asker}, {REQUEST: self._held.pop(p.asker)}) for p in pairs}
        setups = {p.asker: self._held.pop(p.holder) for p in pairs}
        pairs = self._step(ANSWER, pairs, answers, self._keep_message)
        comparisons = {
            p.asker: ({"partner": p.holder}, {SETUP: setups[p.asker], RESPONSE: self._held.pop(p.holder)})
            for p in pairs
        }
        self._step(COMPARE, pairs, comparisons, self._record_shared)
        self._held.clear()

    def _pairs_taking_part(self, wave: Iterable[SitePair]) -> list[SitePair]:
        """Return the pairs of which both sites still take part; note the reason for each of the others."""
        pairs = []
        for pair in wave:
            excluded = [site for site in pair if site in self.without]
            if excluded:
                self.failed[pair] = f"{excluded[0]}: {self.without[excluded[0]]}"
            else:
                pairs.append(pair)
        return pairs

    def _step(
        self,
        task: str,
        pairs: Sequence[SitePair],
        requests: Requests,
        on_reply: Callable[[SitePair, str, str, Reply], str | None],
    ) -> list[SitePair]:
        """Do one exchange with the sites of these pairs; return the pairs that can go on."""
        if not pairs:
            return []
        pair_of = {site: pair for pair in pairs for site in pair}

        def check(site: str, reply: Reply) -> str | None:
            problems = fact_problems(task, reply.facts, site)
            return "; ".join(problems) if problems else on_reply(pair_of[site], site, task, reply)

        outcome = self._exchange(task, check, requests)
        self._exclude_absent(outcome, only_lasting=True)
        for site, reason in sorted(outcome.absent.items()):
            self.failed.setdefault(pair_of[site], f"{site}: {reason}")
        return [pair for pair in pairs if pair not in self.failed]

    def _keep_message(self, pair: SitePair, site: str, task: str, reply: Reply) -> str | None:
        """Keep encrypted elements for the partner; return why this is not the expected message."""
        problems = message_problems(task, reply.tensors)
        if problems:
            return "; ".join(problems)
        ((name, message),) = reply.tensors.items()
        expected = RESPONSE if task == ANSWER else (REQUEST if site == pair.asker else SETUP)
        most = message_bytes(self.sizes[pair.holder if name == SETUP else pair.asker])
        if name != expected or reply.facts["partner"] == site or reply.facts["partner"] not in pair:
            return f"sent a {name} for {reply.facts['partner']}, where another message was asked for"
        if message.numel() > most:
            return f"sent a {name} of {message.numel()} bytes; {most} are the most for the sizes told"
        self._held[site] = message
        return None

    def _record_shared(self, pair: SitePair, site: str, task: str, reply: Reply) -> str | None:
        """Record the size of what a pair shares; return the reason where it cannot be right."""
        both, most = reply.facts["shared"], min(self.sizes[s] for s in pair)
        if reply.facts["partner"] != pair.holder or both > most:
            return f"says {both} triples are shared with {reply.facts['partner']}; expected 0 to {most}"
        self.shared[pair] = both
        return None

    def _exchange(self, task: str, on_reply: OnReply, requests: Requests) -> Outcome:
        outcome = self.send(task, on_reply, requests)
        for traffic in outcome.traffic.values():
            self.transferred["from_sites"] += traffic.sent
            self.transferred["to_sites"] += traffic.received
        return outcome

    def _exclude_absent(self, outcome: Outcome, only_lasting: bool = False) -> None:
        """Exclude the absent sites, so that nobody waits for them again.

        Args:
            only_lasting: only those that were silent or refused; a site that failed once may take part in
                its other pairs.
        """
        for site, reason in outcome.absent.items():
            if not only_lasting or site in outcome.silent or reason.startswith(REFUSED):
                self.without.setdefault(site, reason)

    def report(self, sites: Sequence[str]) -> dict[str, Any]:
        """Return the comparison for run.json: JSON types; `distances` as the rule sees them.

        Args:
            sites: order of the rows and columns of `distances`.
        """
        report: dict[str, Any] = {
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
                key=lambda item: item["sites"],
            ),
            "not_compared": sorted(
                ({"sites": sorted(pair), "why": why} for pair, why in self.failed.items()),
                key=lambda item: item["sites"],
            ),
            "waves": self.waves,
            "bytes": dict(self.transferred),
            "seconds": self.seconds,
        }
        if self.shared or (0 in self.sizes.values() and len(self.sizes) > 1):
            matrix = exact_distances(self.sizes, self.shared, sites)
            report["distances"] = {"order": list(sites), "matrix": matrix.round(6).tolist()}
            report["smallest_eigenvalue"] = round(smallest_eigenvalue(matrix), 6)
        return report


def compare_graphs(
    rule: AggregationRule, channel: Channel, recorder: RunRecorder, progress: ProgressReporter
) -> None:
    """Compare the sites' knowledge graphs exactly, for a rule that wants it.

    Raises:
        RunError: no two sites have the same key.
        StoppedError: the job was aborted.
    """
    sized_rule, sites = rule.capability(NeedsExactSizes), channel.roster.eligible(0)
    if sized_rule is None:
        return
    comparison = Comparison(channel.send_to_each)
    comparison.run(sites)
    sized_rule.set_exact_sizes(comparison.sizes, comparison.shared)
    recorder.record.preparation["exact"] = comparison.report(channel.roster.sites)
    recorder.write()
    progress.event(
        "exact sizes",
        seconds=comparison.seconds,
        compared=len(comparison.shared),
        failed=len(comparison.failed),
        without=comparison.without,
    )
