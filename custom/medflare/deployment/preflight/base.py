# SPDX-License-Identifier: Apache-2.0
"""What a check says: whether it is well, what was found, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["ok", "warning", "problem"]
EXIT: dict[Outcome, int] = {"ok": 0, "warning": 1, "problem": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    outcome: Outcome
    found: str
    expected: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name=name, outcome="ok", found=found)


def warning(name: str, found: str, expected: str, remedy: str) -> Check:
    """A run may work, and somebody should look."""
    return Check(name=name, outcome="warning", found=found, expected=expected, remedy=remedy)


def problem(name: str, found: str, expected: str, remedy: str) -> Check:
    """A run cannot work, or would be unsafe."""
    return Check(name=name, outcome="problem", found=found, expected=expected, remedy=remedy)


def exit_code(checks: Sequence[Check]) -> int:
    """0 all is well, 1 there are warnings, 2 there is a problem."""
    return max((EXIT[check.outcome] for check in checks), default=0)
