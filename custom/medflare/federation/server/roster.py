# SPDX-License-Identifier: Apache-2.0
"""The sites of a run: who is eligible for a round, and for everyone who is not, why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from medflare.federation.server.run_values import RosterValues


@dataclass(slots=True)
class Roster:
    """Sites in order of name. A silent site is suspended for some exchanges and eligible again afterwards.

    Attributes:
        suspend_rounds: exchanges of updates for which a silent site is left out.
        excluded: site -> reason, for the rest of the job.
        suspended: site -> (first round in which it is eligible again, reason).
        stragglers: sites that passed the deadline of their last task.
    """

    sites: list[str]
    suspend_rounds: int = 2
    excluded: dict[str, str] = field(default_factory=dict)
    suspended: dict[str, tuple[int, str]] = field(default_factory=dict)
    stragglers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sites = sorted(set(self.sites))

    def exclude(self, site: str, reason: str) -> None:
        """Leave a site out for the rest of the job."""
        self.excluded[site] = reason

    def suspend(self, site: str, round_number: int, reason: str) -> None:
        """Leave a site out of the next `suspend_rounds` rounds."""
        self.suspended[site] = (round_number + self.suspend_rounds + 1, reason)

    def rejoin(self, site: str) -> None:
        """Let a site that has come back take part from the next round on."""
        self.suspended.pop(site, None)

    def record_replies(self, replied: Iterable[str], overdue: Iterable[str]) -> None:
        """Take who replied to a task, and who passed its deadline, even if it said so itself."""
        self.stragglers = (self.stragglers - set(replied)) | set(overdue)

    def unavailable(self, round_number: int) -> dict[str, str]:
        """Return site -> reason for everyone who is not eligible in a round."""
        out = dict(self.excluded)
        for site, (back, reason) in self.suspended.items():
            if round_number < back and site not in out:
                out[site] = f"suspended until round {back + 1}: {reason}"
        return out

    def eligible(self, round_number: int) -> list[str]:
        """Return the sites that can be selected in a round."""
        unavailable = self.unavailable(round_number)
        return [site for site in self.sites if site not in unavailable]

    def members(self) -> list[str]:
        """Return the sites that belong to the run; one that is suspended takes part again later."""
        return [site for site in self.sites if site not in self.excluded]

    def to_json(self) -> dict[str, Any]:
        """Return JSON types: the fields of `RosterValues`."""
        return {
            "sites": self.sites,
            "excluded": self.excluded,
            "suspended": self.suspended,
            "stragglers": sorted(self.stragglers),
        }

    def go_on_with(self, values: RosterValues) -> None:
        """Put back what `to_json` returned in an earlier job of the run.

        But for whom that job left out: every reason for it is examined again as the run goes on, and what was
        wrong may have been mended meanwhile.
        """
        self.sites = values.sites
        self.suspended = values.suspended
        self.stragglers = set(values.stragglers)


def join_reasons(reasons: dict[str, str], order: Iterable[str]) -> str:
    """Return `site-1, site-2: reason; site-3: reason` for error messages."""
    grouped: dict[str, list[str]] = {}
    for site in order:
        if site in reasons:
            grouped.setdefault(reasons[site], []).append(site)
    return "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in grouped.items())
