# SPDX-License-Identifier: Apache-2.0
"""Secure sums of every exchange, as far as the protection reports one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.formatting import MISSING, duration, number
from medflare.reporting.views import Disclosure, Facts, Table

LISTED = 60
"""Sums in the table, the last ones; those that went wrong are all there."""
OPENED = 12
"""Tables of at most so many sums are unfolded."""

Report = Mapping[str, Any]
"""Report of a protection about one sum."""
Reports = Sequence[tuple[str, Report]]
"""(name of the exchange, report)."""


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `protocol.html`; None where no protection reports a sum."""
    reports = [(name, report) for name, report in _reports(record) if report]
    if not reports:
        return None
    if any("terms" in report for _, report in reports):
        return {"masked": True, **_masked(reports)}
    return {"masked": False, "facts": _encrypted(reports)}


def _reports(record: RunRecord) -> list[tuple[str, Report]]:
    """Return the report of every exchange with its name."""
    reports: list[tuple[str, Report]] = []
    for entry in record.rounds:
        name = f"round {entry.round + 1}"
        if entry.exchanges:
            visits = enumerate(entry.exchanges, 1)
            reports += [(f"{name}, visit {t}", visit.protection) for t, visit in visits]
        else:
            reports.append((name, entry.protection))
    return reports


def _masked(reports: Reports) -> dict[str, Any]:
    """Return the phases of masked sums: keys, opening, which sites were lost."""
    failed = [item for item in reports if _trouble(item[1])]
    shown = [item for item in reports if item in failed or item in reports[-LISTED:]]
    rows = [
        [
            name,
            f"{len(report.get('sites', ()))} of {len(report['terms']['sites'])}",
            report["terms"]["threshold"],
            MISSING if "weight" not in report else number(report["weight"]),
            _seconds(report, "keys_seconds"),
            _seconds(report, "open_seconds"),
            _trouble(report) or "none",
        ]
        for name, report in shown
    ]
    terms = reports[-1][1]["terms"]
    total = sum(report.get("keys_seconds", 0) + report.get("open_seconds", 0) for _, report in reports)
    head = ["", "in the sum", "needed", "weight", "keys and shares", "opening", "lost or blamed"]
    return {
        "facts": {
            "sums": len(reports),
            "not opened": sum("failed" in report for _, report in reports),
            "seconds of the protocol": duration(total),
            "numbers a site sends": f"{terms['narrow']:,} of {terms['bits']} bits, "
            f"{terms['wide'] + 1:,} of 64",
            "what a site weighs by": terms["weighing"],
        },
        "sums": Disclosure(
            summary=f"{len(rows)} of {len(reports)} sums",
            table=Table(head=head, rows=rows),
            opened=len(rows) <= OPENED,
        ),
    }


def _encrypted(reports: Reports) -> Facts:
    """Return facts of sums of ciphertexts, which the server never reads."""
    last = reports[-1][1]
    return {
        "sums": len(reports),
        "weight of the last": number(float(last.get("weight", 0))),
        "groups of equal weight": last.get("groups", MISSING),
    }


def _seconds(report: Report, key: str) -> str:
    return f"{report[key]:.2f} s" if key in report else MISSING


def _trouble(report: Report) -> str:
    """Return which sites were lost or blamed and why, and why a sum could not be opened."""
    named = {**report.get("lost", {}), **report.get("blamed", {})}
    lines = [f"{site}: {why}" for site, why in sorted(named.items())]
    return "; ".join([*lines, *([str(report["failed"])] if "failed" in report else [])])
