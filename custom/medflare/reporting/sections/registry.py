# SPDX-License-Identifier: Apache-2.0
"""The sections of a page, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from medflare.core.run_record import RunRecord
from medflare.reporting.galleries.common import Files
from medflare.reporting.sections import (
    local_baseline,
    participation,
    preparation,
    protocol,
    results,
    selection,
    setup,
    sites,
    temporal,
    traffic,
    training,
)
from medflare.reporting.task_pages import TaskPage
from medflare.reporting.templating import render_template


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """All that a page is made of.

    Attributes:
        record: of the run.
        page: what depends on its task.
        predictions: files at hand with their records; none where the page must hold nothing of patients.
        gallery: records shown of each site.
    """

    record: RunRecord
    page: TaskPage
    predictions: Files
    gallery: int


class PageSection(NamedTuple):
    """A section of the page.

    Attributes:
        key: its anchor.
        title: its heading; "" for the word for the task's records.
        template: file in `reporting/templates`; "" for the gallery of the task.
        view: data of the template; None where the section is left out.
    """

    key: str
    title: str
    template: str
    view: Callable[[PageContext], Any]


SECTIONS = (
    PageSection("results", "Results", "results.html", lambda c: results.view(c.record, c.page)),
    PageSection(
        "alone",
        "What federating brought",
        "local_baseline.html",
        lambda c: local_baseline.view(c.record, c.page),
    ),
    PageSection("findings", "Findings", "findings.html", lambda c: c.page.findings(c.predictions)),
    PageSection("gallery", "", "", lambda c: c.page.gallery(c.predictions, c.gallery)),
    PageSection("curves", "Training", "training.html", lambda c: training.view(c.record)),
    PageSection("visits", "Visits", "temporal.html", lambda c: temporal.view(c.record)),
    PageSection("preparation", "Before round 1", "preparation.html", lambda c: preparation.view(c.record)),
    PageSection("selection", "Selection", "selection.html", lambda c: selection.view(c.record)),
    PageSection("sites", "Sites", "sites.html", lambda c: sites.view(c.record, c.page.task.records_name)),
    PageSection(
        "participation", "Participation", "participation.html", lambda c: participation.view(c.record)
    ),
    PageSection("protocol", "Secure sums", "protocol.html", lambda c: protocol.view(c.record)),
    PageSection("traffic", "Traffic", "traffic.html", lambda c: traffic.view(c.record)),
    PageSection("setup", "Set-up", "setup.html", lambda c: setup.setup_view(c.record)),
    PageSection("files", "Files", "files.html", lambda c: setup.files_view(c.record)),
)


def render_section(section: PageSection, context: PageContext) -> str:
    """Return the HTML inside a section; "" where it has nothing to show."""
    view = section.view(context)
    return render_template(section.template or context.page.gallery_template, view) if view else ""


def title_of(section: PageSection, context: PageContext) -> str:
    """Return the heading of a section."""
    return section.title or context.page.task.records_name.capitalize()
