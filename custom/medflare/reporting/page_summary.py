# SPDX-License-Identifier: Apache-2.0
"""The page's head, what was run, and what it left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from medflare.core.run_record import RunRecord
from medflare.reporting.html import Html, details, duration, facts, flat, paragraph, safe, table
from medflare.reporting.svg import byte_size
from medflare.reporting.tables import curve_name

STATUS = {"running": "still running", "completed": "completed", "failed": "failed", "stopped": "stopped"}


def header(record: RunRecord, privacy: str) -> Html:
    """Name, status, one sentence, what the page holds of patients, and the numbers one asks for first."""
    name, known = record.method or record.job, sorted(record.sites)
    unseen = sorted({item.site for item in record.evaluations if item.role == "unseen"})
    lead = f"{name} trained over {_count(len(known), 'site')} ({', '.join(known)})" if known else name
    lead += f", tested also at {', '.join(unseen)}, which took no part in training" if unseen else ""
    parts = [
        f'<h1>{safe(name)} <span class="pill {record.status}">{STATUS[record.status]}</span></h1>',
        paragraph(lead + ".", "lead"),
        paragraph(
            f"Run {record.run_id} of job {record.job}, started {record.started}, seed {record.seed}.", "why"
        ),
    ]
    if record.reason:
        parts.append(_notice(f"{STATUS[record.status].capitalize()}: {record.reason}"))
    if privacy:
        parts.append(_notice(privacy))
    return Html("".join([*parts, _tiles(record)]))


def _notice(words: str) -> Html:
    return Html(f'<div class="notice" role="note">{paragraph(words)}</div>')


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tiles(record: RunRecord) -> Html:
    sent = sum(t.sent for entry in record.rounds for t in entry.traffic.values())
    received = sum(t.received for entry in record.rounds for t in entry.traffic.values())
    gone = sum(len(entry.absent) for entry in record.rounds)
    shared = sum(record.parameters.values())
    best = ""
    if record.best_round is not None:
        best = f"best: round {record.best_round + 1} by {curve_name(record.best_metric)}"
    budget = f"ε = {record.epsilon:.3g}" if record.epsilon is not None else "no differential privacy"
    tiles: Sequence[tuple[str, str, str]] = [
        ("Rounds", str(len(record.rounds)), best),
        ("Duration", duration(record.seconds), ""),
        ("Shared weights", _short(shared), f"{shared:,}" if shared else ""),
        (
            "Traffic",
            byte_size(sent + received),
            f"{byte_size(sent)} from sites, {byte_size(received)} to them",
        ),
        (
            "Absences",
            str(gone),
            f"of {gone + sum(len(entry.accepted) for entry in record.rounds)} site-rounds",
        ),
        ("Protections", ", ".join(record.protections) or "none", budget),
    ]
    inside = "".join(
        f"<div><dt>{safe(name)}</dt><dd>{safe(value)}<small>{safe(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return Html(f'<dl class="tiles">{inside}</dl>')


def _short(count: int) -> str:
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return str(count) if count else "–"


def setup(record: RunRecord) -> Html:
    """Versions, frozen weights and the resolved configuration."""
    prints = {site.fingerprint for site in record.sites.values()}
    same = "All sites hold the same frozen weights." if len(prints) == 1 else "The frozen weights differ."
    rows = [
        [name, s.backbone, Html(f"<code>{safe(s.fingerprint)}</code>")] for name, s in record.sites.items()
    ]
    parts = []
    if rows:
        parts += ["<h3>Frozen weights</h3>", paragraph(same)]
        parts.append(table(["site", "backbone", "fingerprint"], rows, left=3, kind="compact"))
    if record.versions:
        parts += ["<h3>Versions</h3>", facts(record.versions)]
    if record.configuration:
        text = json.dumps(record.configuration, indent=2, ensure_ascii=False, default=str)
        parts.append(details("Resolved configuration", f"<pre>{safe(text)}</pre>"))
    return Html("".join(parts))


def arithmetic(record: RunRecord) -> Html:
    """Shared parameters of this run, and the paper's own sums next to them."""
    ours = flat(record.parameters)
    if record.parameters:
        ours["total"] = f"{sum(record.parameters.values()):,}"
    if record.expected_bytes_per_direction:
        down = record.expected_bytes_down or record.expected_bytes_per_direction
        same = down == record.expected_bytes_per_direction
        key = "expected per site and direction" if same else "expected from a site"
        ours[key] = byte_size(record.expected_bytes_per_direction)
        if not same:
            ours["expected to a site"] = byte_size(down)
    parts = []
    if ours:
        parts.append(f"<figure><figcaption>Shared parameters of this run</figcaption>{facts(ours)}</figure>")
    if record.paper:
        parts.append(
            f"<figure><figcaption>The paper's own arithmetic</figcaption>{facts(flat(record.paper))}</figure>"
        )
    return Html(f'<div class="charts">{"".join(parts)}</div>' if parts else "")


def artefacts(record: RunRecord) -> Html:
    """Links to what the run made, relative to its record."""
    rows = [
        [name, Html(f'<a href="{safe(quote(path))}">{safe(path)}</a>')]
        for name, path in record.artefacts.items()
    ]
    if not rows:
        return Html("")
    note = paragraph("Paths are relative to the folder of the run record.", "why")
    return Html(note + table(["what", "where"], rows, left=2, kind="compact"))
