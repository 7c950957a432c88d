# SPDX-License-Identifier: Apache-2.0
"""Versions, frozen weights and the resolved configuration; what the run left behind."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from medflare.core.run_record import RunRecord
from medflare.reporting.views import Cell, Table


def setup_view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `setup.html`; None where the record holds nothing of it."""
    if not (record.sites or record.versions or record.configuration):
        return None
    fingerprints = {site.fingerprint for site in record.sites.values()}
    rows = [
        [name, site.backbone, Cell(text=site.fingerprint, code=True)] for name, site in record.sites.items()
    ]
    head = ["site", "backbone", "fingerprint"]
    return {
        "weights": Table(head=head, rows=rows, left=3, style="compact") if rows else None,
        "equal": len(fingerprints) == 1,
        "versions": record.versions,
        "configuration": json.dumps(record.configuration, indent=2, ensure_ascii=False, default=str)
        if record.configuration
        else "",
    }


def files_view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `files.html`: links to what the run made; None where it made nothing."""
    if not record.artefacts:
        return None
    rows = [[name, Cell(text=path, link=quote(path))] for name, path in record.artefacts.items()]
    return {"files": Table(head=["what", "where"], rows=rows, left=2, style="compact")}
