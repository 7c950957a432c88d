# SPDX-License-Identifier: Apache-2.0
"""The sections of a page, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.galleries.common import Files
from medflare.reporting.sections import (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
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
    Section(
        key="results",
        title="Results",
        template="results.html",
        view=lambda context: results.view(context.record, context.page),
    ),
    Section(
        key="gallery",
        title="",
        template="",
        view=lambda context: context.page.gallery(context.predictions, context.gallery),
    ),
    Section(
        key="curves",
        title="Training",
        template="training.html",
        view=lambda context: training.view(context.record),
    ),
    Section(
        key="visits",
        title="Visits",
        template="temporal.html",
        view=lambda context: temporal.view(context.record),
    ),
    Section(
        key="preparation",
        title="Before round 1",
        template="preparation.html",
        view=lambda context: preparation.view(context.record),
    ),
    Section(
        key="selection",
        title="Selection",
        template="selection.html",
        view=lambda context: selection.view(context.record),
    ),
    Section(
        key="sites",
        title="Sites",
        template="sites.html",
        view=lambda context: sites.view(context.record, context.page.task.records_name),
    ),
    Section(
        key="participation",
        title="Participation",
        template="participation.html",
        view=lambda context: participation.view(context.record),
    ),
    Section(
        key="protocol",
        title="Secure sums",
        template="protocol.html",
        view=lambda context: protocol.view(context.record),
    ),
    Section(
        key="traffic",
        title="Traffic",
        template="traffic.html",
        view=lambda context: traffic.view(context.record),
    ),
    Section(
        key="setup",
        title="Set-up",
        template="setup.html",
        view=lambda context: setup.setup_view(context.record),
    ),
    Section(
        key="files",
        title="Files",
        template="files.html",
        view=lambda context: setup.files_view(context.record),
    ),
)


def render_section(section: Section, context: PageContext) -> str:
    """Return the HTML inside a section; "" where it has nothing to show."""
    view = section.view(context)
    return render_template(section.template or context.page.gallery_template, view) if view else ""


def title_of(section: Section, context: PageContext) -> str:
    """Return the heading of a section."""
    return section.title or context.page.task.records_name.capitalize()
