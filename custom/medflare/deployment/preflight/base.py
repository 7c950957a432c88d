# SPDX-License-Identifier: Apache-2.0
"""The result of one preflight check: outcome, what was found, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

CheckOutcome = Literal["ok", "warning", "problem"]
EXIT: dict[CheckOutcome, int] = {"ok": 0, "warning": 1, "problem": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    outcome: CheckOutcome
    found: str
    expected: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields in JSON types."""
        return asdict(self)


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, outcome="ok", found=found)


def warning(name: str, found: str, expected: str, remedy: str) -> Check:
    """Return a warning: a run may work, but a person should look at this."""
    return Check(name=name, outcome="warning", found=found, expected=expected, remedy=remedy)


def problem(name: str, found: str, expected: str, remedy: str) -> Check:
    """Return a problem: a run cannot work, or would be unsafe."""
    return Check(name=name, outcome="problem", found=found, expected=expected, remedy=remedy)


def exit_code(checks: Sequence[Check]) -> int:
    """Return 0 where all is well, 1 for warnings, 2 for a problem."""
    return max((EXIT[check.outcome] for check in checks), default=0)
