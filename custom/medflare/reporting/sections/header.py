# SPDX-License-Identifier: Apache-2.0
"""The page's head: what was run, what the page holds of patients, and the numbers one asks for first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.core.site_description import EMBEDDED
from medflare.reporting.formatting import byte_size, duration, plural, short_count
from medflare.reporting.metric_names import curve_name

STATUS = {"running": "still running"}
"""Words for a status that are not its name."""
FEW = 20
"""Studies of a test from fewer of which nothing can be concluded."""


def view(
    record: RunRecord, privacy: str, notice: str = "", summary: str = "", weights: str = ""
) -> dict[str, Any]:
    """Return the data of `header.html`.

    Args:
        record: of the run.
        privacy: what the page holds of patients; "" if nothing.
        notice: what everything that the model wrote is.
        summary: one sentence on how often the model errs.
        weights: fingerprint of the trained weights; "" if unknown.
    """
    name, participants = record.method or record.job, sorted(record.sites)
    unseen = sorted({item.site for item in record.evaluations if item.role == "unseen"})
    lead = name
    if participants:
        trained = sum(site.examples.get("train", 0) for site in record.sites.values())
        kind = "synthetic site" if record.synthetic else "site"
        lead += f" trained over {plural(len(participants), kind)} ({', '.join(participants)})"
        lead += f" on {trained:,} training records" if trained else ""
    if unseen:
        lead += f", tested also at {', '.join(unseen)}, which took no part in training"
    status = STATUS.get(record.status, record.status)
    reason = f"{status.capitalize()}: {record.reason}" if record.reason else ""
    run = f"Run {record.run_id} of job {record.job}, started {record.started}, seed {record.seed}."
    return {
        "name": name,
        "status": record.status,
        "status_text": status,
        "lead": f"{lead}. {summary}".strip(),
        "run": f"{run} Trained weights {weights}." if weights else run,
        "notices": [
            text
            for text in (reason, _model(record, notice), *_warnings(record), *_limits(record), privacy)
            if text
        ],
        "tiles": _tiles(record),
    }


def _warnings(record: RunRecord) -> list[str]:
    """Return what the server warned of before round 1."""
    return [f"Warning: {reason}" for reason in record.preparation.get("warnings", [])]


def _model(record: RunRecord, notice: str) -> str:
    """Return what the model's texts are, and which base models it has."""
    bases = sorted({f"{site.backbone} {site.fingerprint[:16]}" for site in record.sites.values()})
    return f"{notice} Base model: {', '.join(bases)}." if notice and bases else notice


def _limits(record: RunRecord) -> Iterator[str]:
    """Yield what a reader must know before believing a score."""
    if record.synthetic:
        yield f"Synthetic hospitals ({', '.join(record.synthetic)}): no patient is in this run."
    if any(site.backbone.startswith(EMBEDDED) for site in record.sites.values()):
        yield (
            "Demo model: the embedded one, made for synthetic texts. For real reports and notes set a "
            "backbone in site.yaml."
        )
    sizes = {item.site: item.studies for item in record.evaluations if item.studies < FEW}
    if sizes:
        named = ", ".join(f"{site} {count}" for site, count in sorted(sizes.items()))
        yield f"Tests of fewer than {FEW} records ({named}): nothing can be concluded from their scores."


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
    privacy = "no differential privacy"
    if record.epsilon is not None:
        privacy = f"ε = {record.epsilon:.3g} a patient" + (
            f" at δ = {record.delta:g}" if record.delta else ""
        )
    directions = f"{byte_size(sent)} from sites, {byte_size(received)} to them"
    return [
        ("Rounds", str(len(record.rounds)), best),
        ("Duration", duration(record.seconds), ""),
        ("Shared weights", short_count(shared), f"{shared:,}" if shared else ""),
        ("Traffic", byte_size(sent + received), directions),
        ("Absences", str(absences), f"of {absences + accepted} site-rounds"),
        ("Protections", ", ".join(record.protections) or "none", privacy),
    ]
