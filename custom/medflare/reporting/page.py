# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page for a run, from run.json and the predictions files it names.

The page loads nothing and runs no script, so it can be archived and opened behind any firewall. With a
gallery it holds images, reports or notes of patients and says so on top. Sections compute plain data from the
record (sections/, galleries/); all HTML stands in templates/, which escape what they show.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord, read_record
from medflare.core.tensor_fingerprint import tensor_fingerprint
from medflare.reporting.galleries.common import Files
from medflare.reporting.sections import header
from medflare.reporting.sections.registry import SECTIONS, PageContext, render_section, title_of
from medflare.reporting.task_pages import task_page
from medflare.reporting.templating import render_template, style_sheet

RECORDS_PER_SITE = 4


def write_page(record_path: Path, out: Path | None = None, gallery: int = RECORDS_PER_SITE) -> Path:
    """Write the page of a run next to its record.

    Args:
        record_path: run.json or the folder that holds it.
        out: the HTML file; `page.html` next to the record by default.
        gallery: studies, notes or questions shown per site; with 0 the page holds nothing of any patient.

    Returns:
        The path of the page.

    Raises:
        DataError: the record or a predictions file cannot be read.
        ConfigError: `out` is a folder or a device.
    """
    path = record_path / "run.json" if record_path.is_dir() else record_path
    record = read_record(path)
    predictions = collect_predictions(record, path.parent) if gallery else []
    out = out or path.with_name("page.html")
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; name the file of the page, for instance {out / 'page.html'}.")
    if out.exists() and not out.is_file():  # it would be replaced, /dev/null for the whole machine
        raise ConfigError(f"{out}: is no file; name one for the page.")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(out.name + ".tmp")
    html = render(record, predictions, gallery, path.name, weights=_weights(record, path.parent))
    scratch.write_text(html, encoding="utf-8")
    os.replace(scratch, out)
    return out


def _weights(record: RunRecord, folder: Path) -> str:
    """Return the fingerprint of the final trained weights; "" where they are not beside the record."""
    final = folder / record.artefacts["final"] if "final" in record.artefacts else None
    return tensor_fingerprint(final) if final is not None and any(final.glob("*.safetensors")) else ""


def collect_predictions(record: RunRecord, folder: Path) -> Files:
    """Return the predictions of all evaluations whose file is at hand; a site may keep its file to itself."""
    read = task_page(record.task).read
    paths = dict.fromkeys(folder / item.predictions for item in record.evaluations if item.predictions)
    return [(path, read(path)) for path in paths if path.exists()]


def render(
    record: RunRecord,
    predictions: Files,
    gallery: int = RECORDS_PER_SITE,
    source: str = "run.json",
    live: Mapping[str, Any] | None = None,
    weights: str = "",
) -> str:
    """Return the page as HTML.

    Args:
        record: of the run.
        predictions: files with their records, for the gallery.
        gallery: records shown of each site.
        source: name of the record's file, in the footer.
        live: data of `live.html`, where a server shows the page; None for a file of its own.
        weights: fingerprint of the trained weights; "" if unknown.
    """
    context = PageContext(
        record=record, page=task_page(record.task), predictions=predictions, gallery=gallery
    )
    shows_patients = gallery and any(items for _, items in predictions)
    rendered = [
        (section.key, title_of(section, context), Markup(body))
        for section in SECTIONS
        if (body := render_section(section, context))
    ]
    return render_template(
        "page.html",
        header.view(
            record,
            context.page.privacy if shows_patients else "",
            notice=context.page.notice,
            summary=context.page.summary(predictions),
            weights=weights,
        ),
        title=f"{record.method or record.job} · {record.run_id}",
        style=Markup(style_sheet()),
        sections=rendered,
        source=source,
        live=live,
    )
