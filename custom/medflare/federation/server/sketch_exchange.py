# SPDX-License-Identifier: Apache-2.0
"""The server's side of sketches: who sent one, who did not and why, and how far the sites lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import NeedsSketches
from medflare.core.errors import RunError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.sketch import Sketch
from medflare.egress.declaration import NO_SKETCH, SAME_SKETCH, fact_problems, sketch_bytes
from medflare.egress.failures import FailureCode
from medflare.federation.server.channel import Channel
from medflare.federation.server.quorum import OPTIONAL
from medflare.federation.server.run_recorder import RunRecorder
from medflare.knowledge.divergence import distance_matrix, drift
from medflare.knowledge.sketches import comparable, sites_outside_majority
from medflare.protocol.messages import SKETCH, Reply

NO_KNOWLEDGE = "site.yaml has no block `knowledge`"
REFUSED = f"E{int(FailureCode.POLICY)} "
"""Begins the reason of a site whose own policy keeps its sketch in."""


def wants_sketches(rule: AggregationRule, exchange: int | None = None) -> bool:
    """Return whether a rule wants sketches at all, or asks again before this exchange."""
    sketched = rule.capability(NeedsSketches)
    if sketched is None:
        return False
    return exchange is None or (exchange > 0 and exchange % sketched.sketch_period == 0)


@dataclass(slots=True)
class Sketches:
    """Sketches of the sites' graphs that the server holds.

    Attributes:
        held: the sketches that can be compared; without: reason for every site of which there is none.
        texts: of how many texts each is; vocabularies: digest of the vocabulary that each was made with;
            renewed: what came later in the run.
    """

    held: dict[str, Sketch] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    vocabularies: dict[str, str] = field(default_factory=dict)
    renewed: list[dict[str, Any]] = field(default_factory=list)
    _fresh: dict[str, Sketch] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)

    def accept(self, site: str, reply: Reply) -> str | None:
        """Take a reply; return the reason where it holds no sketch that can be read."""
        state = reply.facts.get("state")
        if state == SAME_SKETCH:
            return None if site in self.held else "says its sketch is the same, and none came before"
        if state == NO_SKETCH:
            self._gone.add(site)
            self.without[site] = NO_KNOWLEDGE
            return None
        try:
            problems = fact_problems(SKETCH, reply.facts, site)
            if problems:
                return "; ".join(problems)
            sketch = Sketch.from_bytes(sketch_bytes(reply.facts), site)
            texts = int(reply.facts["examples"])
        except (UpdateError, KeyError, OverflowError, TypeError, ValueError) as error:
            return f"sketch: {error}"
        self._fresh[site], self.texts[site] = sketch, texts
        if "vocabulary" in reply.facts:
            self.vocabularies[site] = reply.facts["vocabulary"]
        return None

    def update(self, rule: NeedsSketches, exchange: int, absent: dict[str, str]) -> list[str]:
        """Hand new sketches to the rule after an exchange; return the sites whose sketch is new.

        A site whose key, context, kind or k is not that of most sites is left out, with the reason. A site
        that has none any more, or whose policy refuses to send it, is taken out of the rule.

        Raises RunError where all sites sent a sketch, no two can be compared and nobody has trained yet.
        """
        fresh, self._fresh = self._fresh, {}
        self._withdraw(rule, absent)
        self.without |= {site: why for site, why in absent.items() if site not in self.held}
        kept, strange = comparable({**self.held, **fresh})
        if exchange < 0 and len(kept) == 1 < len(kept) + len(strange):
            self._exclude_all(kept, strange)
        before, self.held = self.held, kept
        self.without |= strange
        for site in strange:
            rule.set_sketch(site, None)
        new = sorted(set(fresh) & set(kept))
        for site in new:
            self.without.pop(site, None)
            if exchange >= 0:
                self.renewed.append(self._renewal(site, exchange, before.get(site)))
            rule.set_sketch(site, kept[site])
        return new

    def _withdraw(self, rule: NeedsSketches, absent: dict[str, str]) -> None:
        """Take out of the rule the sketches that sites no longer have, or no longer share."""
        refused = {site for site, why in absent.items() if why.startswith(REFUSED)}
        withdrawn, self._gone = (self._gone | refused) & set(self.held), set()
        for site in withdrawn:
            del self.held[site], self.texts[site]
            rule.set_sketch(site, None)

    def _exclude_all(self, kept: dict[str, Sketch], strange: dict[str, str]) -> None:
        """Exclude all sketches, as no two are comparable: the rule then goes by latencies alone.

        Raises:
            RunError: every site sent a sketch, so that their settings must be wrong.
        """
        if not set(self.without) - set(kept) - set(strange):
            raise RunError(
                f"no two sketches of knowledge graphs can be compared: {'; '.join(strange.values())}. Give "
                "all sites the same key file, and the same context, kind and hashes under `knowledge`."
            )
        for site in sorted(kept):
            strange[site] = "no other site's sketch can be compared with its own"
        kept.clear()

    def _renewal(self, site: str, exchange: int, before: Sketch | None) -> dict[str, Any]:
        """Return what the record says of a later sketch; `moved`: its distance from the one before."""
        now, entry = self.held[site], {"exchange": exchange, "site": site, "texts": self.texts[site]}
        if before is None or before.fingerprint != now.fingerprint:
            return entry
        return entry | {"moved": round(drift(before, now), 4)}

    def report(self, sites: Sequence[str]) -> dict[str, Any]:
        """Return JSON types for run.json; `distances` as the rule sees them, in the order of `sites`."""
        first = next(iter(self.held.values()), None)
        report: dict[str, Any] = {
            "sites": {
                site: {"texts": self.texts[site], "empty": sketch.empty, "bytes": len(sketch.to_bytes())}
                for site, sketch in sorted(self.held.items())
            },
            "without": dict(sorted(self.without.items())),
            "other_vocabulary": sites_outside_majority(
                {s: d for s, d in self.vocabularies.items() if s in self.held}
            ),
            "renewed": list(self.renewed),
        }
        if first is not None:
            matrix = distance_matrix(self.held, sites).round(4).tolist()
            report |= {"key": first.fingerprint.hex()[:8], "hashes": len(first.values), "kind": first.kind}
            report["distances"] = {"order": list(sites), "matrix": matrix}
        return report


class SketchExchange:
    """Asks sites for sketches of their knowledge graphs, for a rule that wants them.

    Args:
        growth: share by which a site's texts must have changed before it sketches them again.
        exchanges: of updates in the run.

    Attributes:
        received_at: site -> exchange before which its last sketch came.
    """

    def __init__(
        self, rule: AggregationRule, channel: Channel, recorder: RunRecorder, growth: float, exchanges: int
    ) -> None:
        self.rule, self.channel, self.recorder = rule, channel, recorder
        self.growth, self.exchanges = growth, exchanges
        self.sketches = Sketches()
        self.received_at: dict[str, int] = {}

    def refresh(self, exchange: int) -> None:
        """Ask every eligible site for its sketch, if the rule wants one before this exchange of updates.

        Args:
            exchange: -1 before the first.
        """
        rule, roster = self.rule.capability(NeedsSketches), self.channel.roster
        if rule is None or not wants_sketches(self.rule, exchange if exchange >= 0 else None):
            return
        plan = RoundPlan(round=exchange, rounds=self.exchanges) if exchange >= 0 else None
        held = {site: when for site, when in self.received_at.items() if site in self.sketches.held}
        options = {"held": held, "exchange": exchange, "growth": self.growth}
        sites = roster.eligible(max(exchange, 0))
        outcome = self.channel.broadcast(
            SKETCH, self.sketches.accept, sites, plan, options=options, quorum=OPTIONAL
        )
        new = self.sketches.update(rule, exchange, outcome.absent)
        self.received_at |= dict.fromkeys(new, exchange)
        self.recorder.record.preparation["sketches"] = self.sketches.report(roster.sites)
        self.recorder.write()
        self.channel.progress.event("sketches", new=new, without=self.sketches.without)
