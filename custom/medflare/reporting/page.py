# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page for a run, from run.json and the predictions files it names.

The page loads nothing and runs no script, so it can be archived and opened behind any firewall. With a
gallery it holds images, reports or notes of patients and says so on top.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from string import Template

from medflare.core.run_record import RunRecord, read_record
from medflare.reporting import page_protocol, page_results, page_selection, page_summary, page_temporal
from medflare.reporting import page_training as page_process
from medflare.reporting.html import Html, safe
from medflare.reporting.page_tasks import Found, kind_of
from medflare.reporting.page_weights import weights

STUDIES_PER_SITE = 4


def write_page(record_path: Path, out: Path | None = None, gallery: int = STUDIES_PER_SITE) -> Path:
    """Writes the page of a run next to its record and returns its path.

    Args:
        record_path: run.json or the folder that holds it.
        out: the HTML file; `page.html` next to the record by default.
        gallery: studies or notes shown per site; with 0 the page holds nothing of any patient.
    """
    path = record_path / "run.json" if record_path.is_dir() else record_path
    record = read_record(path)
    found = collect_predictions(record, path.parent) if gallery else []
    out = out or path.with_name("page.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(out.name + ".tmp")
    scratch.write_text(render(record, found, gallery, path.name), encoding="utf-8")
    os.replace(scratch, out)
    return out


def collect_predictions(record: RunRecord, folder: Path) -> Found:
    """The predictions of all evaluations whose file is at hand; a site may keep its own to itself."""
    read = kind_of(record).read
    paths = dict.fromkeys(folder / item.predictions for item in record.evaluations if item.predictions)
    return [(path, read(path)) for path in paths if path.exists()]


def render(
    record: RunRecord, predictions: Found, gallery: int = STUDIES_PER_SITE, source: str = "run.json"
) -> str:
    """The page as text."""
    kind = kind_of(record)
    patients = gallery and any(items for _, items in predictions)
    sections: list[tuple[str, str, str]] = [
        ("results", "Results", page_results.results(record, kind)),
        ("gallery", kind.unit.capitalize(), kind.gallery(predictions, gallery)),
        ("curves", "Training", page_process.curves(record) + weights(record)),
        ("visits", "Visits", page_temporal.exchanges(record)),
        ("preparation", "Before round 1", page_protocol.preparation(record)),
        ("selection", "Selection", page_selection.selection(record)),
        ("sites", "Sites", page_process.sites(record, kind.unit)),
        ("participation", "Participation", page_process.participation(record)),
        ("protocol", "Secure sums", page_protocol.protocol(record)),
        ("traffic", "Traffic", page_process.traffic(record)),
        ("setup", "Set-up", page_summary.setup(record)),
        ("files", "Files", page_summary.artefacts(record)),
    ]
    shown = [item for item in sections if item[2]]
    return Template(_asset("page.html")).substitute(
        title=safe(f"{record.method or record.job} · {record.run_id}"),
        style=_asset("page.css"),
        header=page_summary.header(record, kind.privacy if patients else ""),
        nav=Html("".join(f'<a href="#{key}">{safe(name)}</a>' for key, name, _ in shown)),
        sections="\n".join(
            f'<section id="{key}"><h2>{safe(name)}</h2>{body}</section>' for key, name, body in shown
        ),
        source=safe(source),
    )


def _asset(name: str) -> str:
    return files("medflare.reporting").joinpath(name).read_text(encoding="utf-8")
