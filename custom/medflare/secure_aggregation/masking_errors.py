# SPDX-License-Identifier: Apache-2.0
"""Errors of masked aggregation, with the names of the sites; no message holds key material."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from medflare.core.errors import RunError


class MaskingError(RunError):
    """Secure aggregation of a round cannot go on.

    Attributes:
        phase: advertise, share, mask, confirm, reveal or unmask.
        sites: those that are missing or sent something inconsistent.
    """

    def __init__(self, message: str, *, phase: str, sites: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.phase, self.sites = phase, tuple(sorted(sites))

    def to_json(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "kind": type(self).__name__,
            "phase": self.phase,
            "sites": list(self.sites),
            "message": str(self),
        }


class TooFewSites(MaskingError):  # noqa: N818 - reads as what it says
    """Fewer sites than the threshold; `sites` are those that are missing."""


class UntrustedSite(MaskingError):  # noqa: N818
    """A certificate or signature is not what it should be."""


class BrokenProtocol(MaskingError):  # noqa: N818
    """A message contradicts what was agreed or said before, or comes out of turn."""


def too_few(phase: str, present: Iterable[str], sites: Iterable[str], needed: int, what: str) -> TooFewSites:
    """Return the error that says how many sites did `what`, how many are needed, and which are missing."""
    answered, everyone = set(present), set(sites)
    missing = sorted(everyone - answered)
    return TooFewSites(
        f"secure aggregation, {phase}: {len(answered)} of {len(everyone)} sites {what}, {needed} are needed; "
        f"missing: {', '.join(missing) or 'none'}. The round is given up and the state stays as it was.",
        phase=phase,
        sites=missing,
    )
