# SPDX-License-Identifier: Apache-2.0
"""The sites of a run: who is asked in a round, and for everyone who is not, why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Roster:
    """Sites in order of name. A silent site is benched for some rounds and then asked again.

    Attributes:
        excluded: site -> reason, for the rest of the run.
        benched: site -> (first round in which it is asked again, reason).
        quiet: sites that passed the deadline of their last task.
    """

    sites: list[str]
    bench_rounds: int = 2
    excluded: dict[str, str] = field(default_factory=dict)
    benched: dict[str, tuple[int, str]] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sites = sorted(set(self.sites))

    def exclude(self, site: str, reason: str) -> None:
        """Leaves a site out for the rest of the run."""
        self.excluded[site] = reason

    def bench(self, site: str, round_number: int, reason: str) -> None:
        """Leaves a site out of the next `bench_rounds` rounds."""
        self.benched[site] = (round_number + self.bench_rounds + 1, reason)

    def heard(self, answered: Iterable[str], overdue: Iterable[str]) -> None:
        """Takes who answered a task, and who did not do it in time, be it by its own word."""
        self.quiet = (self.quiet - set(answered)) | set(overdue)

    def resting(self, round_number: int) -> dict[str, str]:
        """Site -> reason for everyone who is not asked in a round."""
        out = dict(self.excluded)
        for site, (back, reason) in self.benched.items():
            if round_number < back and site not in out:
                out[site] = f"benched until round {back}: {reason}"
        return out

    def asked(self, round_number: int) -> list[str]:
        """The sites that are asked in a round."""
        resting = self.resting(round_number)
        return [site for site in self.sites if site not in resting]

    def to_json(self) -> dict[str, Any]:
        return {"sites": self.sites, "excluded": self.excluded, "benched": self.benched}

    def load_json(self, data: dict[str, Any]) -> None:
        """Puts back what `to_json` returned."""
        self.sites = list(data["sites"])
        self.excluded = dict(data["excluded"])
        self.benched = {site: (int(back), str(why)) for site, (back, why) in data["benched"].items()}


def words(reasons: dict[str, str], order: Iterable[str]) -> str:
    """`site-1, site-2: reason; site-3: reason` for error messages."""
    grouped: dict[str, list[str]] = {}
    for site in order:
        if site in reasons:
            grouped.setdefault(reasons[site], []).append(site)
    return "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in grouped.items())
