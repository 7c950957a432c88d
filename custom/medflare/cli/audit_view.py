# SPDX-License-Identifier: Apache-2.0
"""The table that `medflare audit` prints."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from medflare.auditing.report import AuditReport, Canaries, SiteAudit
from medflare.core.run_record import Estimate

WIDTH = 100  # where output is not a terminal


def print_audit(report: AuditReport) -> None:
    """Print the audit of each site as a table, and its warnings."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for name, audit in report.sites.items():
        console.print(_table(name, audit), "")
        if audit.canaries is not None:
            console.print(_canary_table(audit.canaries, audit.epsilon), "")
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
    if audit.shadow_attack is not None:
        attack = audit.shadow_attack
        for row, of in (
            ("AUC", lambda scores: _number(scores.auc)),
            ("at 1 % false alarms", lambda scores: _percent(scores.tpr_at_1_percent)),
            ("at 0.1 % false alarms", lambda scores: _percent(scores.tpr_at_01_percent)),
        ):
            table.add_row(f"{attack.shadows} shadows: {row}", of(attack.records), of(attack.patients))
        offline = _number(attack.offline_records.auc), _number(attack.offline_patients.auc)
        table.add_row(f"{attack.shadows} shadows, offline: AUC", *offline)
    table.add_row("AUC of the frozen model alone", _number(found.without_adapter), "")
    table.add_row("mean gain, trained on", f"{found.mean_gain_members:.3f}", "")
    table.add_row("mean gain, others", f"{found.mean_gain_others:.3f}", "")
    return table


def _canary_table(found: Canaries, promised: float | None) -> Table:
    """Return exposure and extraction by repetitions; the bound on epsilon stands below."""
    table = Table(
        title=f"{found.count} canaries, each among {found.candidates + 1} secrets",
        title_justify="left",
        caption_justify="left",
        caption=f"epsilon is at least {found.epsilon_lower_bound:.2f} at delta {found.delta:g} "
        f"({found.right} of {found.guesses} guesses right); the accountant says "
        f"{'nothing' if promised is None else f'at most {promised:.2f}'}",
    )
    for column in ("repetitions", "in / out", "exposure in", "exposure out", "extracted in", "extracted out"):
        table.add_column(column, justify="right")
    for row in found.repetitions:
        bits = ["-" if v is None else f"{v:.2f}" for v in (row.exposure, row.exposure_left_out)]
        shares = ["-" if v is None else f"{v:.0%}" for v in (row.extracted, row.extracted_left_out)]
        table.add_row(str(row.repeat), f"{row.inserted} / {row.left_out}", *bits, *shares)
    return table


def _number(item: Estimate) -> str:
    return f"{item.value:.3f} [{item.low:.3f}, {item.high:.3f}]"


def _percent(item: Estimate) -> str:
    low, high = item.interval or (item.value, item.value)
    return f"{item.value:.1%} [{low:.1%}, {high:.1%}]"
