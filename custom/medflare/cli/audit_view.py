# SPDX-License-Identifier: Apache-2.0
"""The table that `medflare audit` prints."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from medflare.auditing.report import AuditReport, SiteAudit
from medflare.core.run_record import Estimate

WIDTH = 100  # where output is not a terminal


def print_audit(report: AuditReport) -> None:
    """Print the audit of each site as a table, and its warnings."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for name, audit in report.sites.items():
        console.print(_table(name, audit), "")
        for warning in audit.warnings:
            console.print(f"! {warning}", style="yellow")


def _table(name: str, audit: SiteAudit) -> Table:
    found = audit.membership
    title = (
        f"{name}: {found.members.patients} training patients ({found.members.records} records) against "
        f"{found.others.patients} others ({found.others.records})"
    )
    table = Table(title=title, title_justify="left")
    for column in ("membership inference", "records", "patients"):
        table.add_column(column, justify="left" if column.startswith("m") else "right")
    for row, of in (
        ("AUC (0.5 is guessing)", lambda scores: _number(scores.auc)),
        ("recognised at 1 % false alarms", lambda scores: _percent(scores.tpr_at_1_percent)),
        ("recognised at 0.1 % false alarms", lambda scores: _percent(scores.tpr_at_01_percent)),
    ):
        table.add_row(row, of(found.records), of(found.patients))
    table.add_row("AUC of the frozen model alone", _number(found.without_adapter), "")
    table.add_row("mean gain, trained on", f"{found.mean_gain_members:.3f}", "")
    table.add_row("mean gain, others", f"{found.mean_gain_others:.3f}", "")
    return table


def _number(item: Estimate) -> str:
    return f"{item.value:.3f} [{item.low:.3f}, {item.high:.3f}]"


def _percent(item: Estimate) -> str:
    low, high = item.interval or (item.value, item.value)
    return f"{item.value:.1%} [{low:.1%}, {high:.1%}]"
