# SPDX-License-Identifier: Apache-2.0
"""The page of an audit for a data-protection officer: each number with what it means in two sentences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from markupsafe import Markup

from medflare.auditing.report import AuditReport, Canaries, SiteAudit
from medflare.core.run_record import Estimate
from medflare.reporting.templating import render_template, style_sheet

MEANINGS = {
    "Recognition of a patient (AUC)": (
        "Probability that an attacker, who has the adapter and the records, gives a patient who was "
        "trained on a higher score than one who was not. 0.5 is guessing, and 1 is certainty."
    ),
    "Recognition of a record (AUC)": (
        "The same for single records instead of patients. It is lower where an attacker gains by "
        "joining a patient's records."
    ),
    "Patients recognised at 1 % false alarms": (
        "Share of the training patients whom an attacker names who is wrong about at most 1 % of the "
        "others. It shows whether some patients are exposed although the mean looks harmless."
    ),
    "Patients recognised at 0.1 % false alarms": (
        "The same for an attacker who is wrong about at most one in a thousand. With fewer than a "
        "thousand other patients it means no false alarm at all."
    ),
    "Recognition of a patient with shadow adapters (AUC)": (
        "The strongest attack of this audit: it first trains adapters of its own with and without each "
        "patient and looks which of both this adapter resembles. 0.5 is guessing, and 1 is certainty."
    ),
    "Shadow adapters: patients recognised at 1 % false alarms": (
        "Share of the training patients whom that attack names while it is wrong about at most 1 % of the "
        "others. Compare it with the simpler attack above; the larger number counts."
    ),
    "Shadow adapters: patients recognised at 0.1 % false alarms": (
        "The same while it is wrong about at most one in a thousand. With fewer than a thousand other "
        "patients it means no false alarm at all."
    ),
    "Shadow adapters without the patient (AUC)": (
        "The same for an attacker who trained no adapter with the patient, only others without. It costs "
        "him less, because the adapters can be trained before he knows whom he looks for."
    ),
    "The same attack without the adapter (AUC)": (
        "A control: the frozen model saw none of these patients, so this should be near 0.5. Where it "
        "is not, the two groups differ by themselves, and the numbers above say less."
    ),
    "Epsilon is at least": (
        "No training with a smaller epsilon lets so many canaries be recognised, with 95 % "
        "confidence. It may be far below the true value and never proves that a run is private."
    ),
    "Epsilon is at most": (
        "What the account of differential privacy promises for this run. If the number above is "
        "larger, something is wrong: do not release the adapter."
    ),
    "Exposure of a canary, in bits": (
        "How far up the adapter ranks a made-up secret that it was trained on, among 32 that were "
        "possible; 5 is the first place. About 1.4 is expected of a secret that it never saw."
    ),
}
"""Number -> its meaning, in two sentences."""


def write_audit_page(report: AuditReport, path: Path) -> Path:
    """Write the page atomically and return its path."""
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(render_audit(report), encoding="utf-8")
    os.replace(scratch, path)
    return path


def render_audit(report: AuditReport) -> str:
    """Return the page as HTML."""
    view = {
        "run_id": report.run_id,
        "method": report.method,
        "task": report.task,
        "version": report.version,
        "sites": [_site(name, audit) for name, audit in report.sites.items()],
    }
    return render_template("audit.html", view, style=Markup(style_sheet()))


def _site(name: str, audit: SiteAudit) -> dict[str, Any]:
    found = audit.membership
    rows = [
        _estimated("Recognition of a patient (AUC)", found.patients.auc),
        _estimated("Recognition of a record (AUC)", found.records.auc),
        _estimated("Patients recognised at 1 % false alarms", found.patients.tpr_at_1_percent),
        _estimated("Patients recognised at 0.1 % false alarms", found.patients.tpr_at_01_percent),
    ]
    if (attack := audit.shadow_attack) is not None:
        shadows = "Shadow adapters: patients recognised at"
        rows += [
            _estimated("Recognition of a patient with shadow adapters (AUC)", attack.patients.auc),
            _estimated(f"{shadows} 1 % false alarms", attack.patients.tpr_at_1_percent),
            _estimated(f"{shadows} 0.1 % false alarms", attack.patients.tpr_at_01_percent),
            _estimated("Shadow adapters without the patient (AUC)", attack.offline_patients.auc),
        ]
    rows.append(_estimated("The same attack without the adapter (AUC)", found.without_adapter))
    if audit.canaries is not None:
        rows.append(_row("Epsilon is at least", f"{audit.canaries.epsilon_lower_bound:.2f}"))
    if audit.epsilon is not None:
        rows.append(_row("Epsilon is at most", f"{audit.epsilon:.2f}"))
    if audit.canaries is not None:
        rows.append(_row("Exposure of a canary, in bits", "see below"))
    return {
        "name": name,
        "lead": f"{found.members.patients} patients ({found.members.records} records) who were trained on, "
        f"against {found.others.patients} patients ({found.others.records} records) who were not.",
        "warnings": audit.warnings,
        "rows": rows,
        "repetitions": [] if audit.canaries is None else _repetitions(audit.canaries),
    }


def _row(name: str, value: str, interval: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "interval": interval, "meaning": MEANINGS[name]}


def _estimated(name: str, item: Estimate) -> dict[str, str]:
    ends = item.interval
    return _row(name, f"{item.value:.3f}", "" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}")


def _repetitions(found: Canaries) -> list[list[str]]:
    return [
        [
            str(row.repeat),
            str(row.inserted),
            str(row.left_out),
            *("-" if v is None else f"{v:.2f}" for v in (row.exposure, row.exposure_left_out)),
            *("-" if v is None else f"{v:.0%}" for v in (row.extracted, row.extracted_left_out)),
        ]
        for row in found.repetitions
    ]
