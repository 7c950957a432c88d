# SPDX-License-Identifier: Apache-2.0
"""The page's head: what was run, what the page holds of patients, and the numbers one asks for first."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.formatting import byte_size, duration, plural, short_count
from medflare.reporting.metric_names import curve_name

STATUS = {"running": "still running", "completed": "completed", "failed": "failed", "stopped": "stopped"}


def view(record: RunRecord, privacy: str) -> dict[str, Any]:
    """Return the data of `header.html`.

    Args:
        record: of the run.
        privacy: what the page holds of patients; "" if nothing.
    """
    name, participants = record.method or record.job, sorted(record.sites)
    unseen = sorted({item.site for item in record.evaluations if item.role == "unseen"})
    lead = name
    if participants:
        lead += f" trained over {plural(len(participants), 'site')} ({', '.join(participants)})"
    if unseen:
        lead += f", tested also at {', '.join(unseen)}, which took no part in training"
    reason = f"{STATUS[record.status].capitalize()}: {record.reason}" if record.reason else ""
    return {
        "name": name,
        "status": record.status,
        "status_text": STATUS[record.status],
        "lead": f"{lead}.",
        "run": f"Run {record.run_id} of job {record.job}, started {record.started}, seed {record.seed}.",
        "notices": [text for text in (reason, privacy) if text],
        "tiles": _tiles(record),
    }


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return (name, value, further words) of the numbers on top."""
    sent = sum(t.sent for entry in record.rounds for t in entry.traffic.values())
    received = sum(t.received for entry in record.rounds for t in entry.traffic.values())
    absences = sum(len(entry.absent) for entry in record.rounds)
    accepted = sum(len(entry.accepted) for entry in record.rounds)
    shared = sum(record.parameters.values())
    best = ""
    if record.best_round is not None:
        best = f"best: round {record.best_round + 1} by {curve_name(record.best_metric)}"
    privacy = f"ε = {record.epsilon:.3g}" if record.epsilon is not None else "no differential privacy"
    directions = f"{byte_size(sent)} from sites, {byte_size(received)} to them"
    return [
        ("Rounds", str(len(record.rounds)), best),
        ("Duration", duration(record.seconds), ""),
        ("Shared weights", short_count(shared), f"{shared:,}" if shared else ""),
        ("Traffic", byte_size(sent + received), directions),
        ("Absences", str(absences), f"of {absences + accepted} site-rounds"),
        ("Protections", ", ".join(record.protections) or "none", privacy),
    ]
