# SPDX-License-Identifier: Apache-2.0
"""Renders parts of a page, and reads HTML as a browser would, as far as tests ask."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.sections.registry import SECTIONS, PageContext, render_section
from medflare.reporting.task_pages import TASK_PAGES, task_page
from medflare.reporting.templating import environment, render_template

VOID = {"input", "meta", "img", "line", "circle", "rect", "polyline", "br"}


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


def read_html(markup: str) -> Reader:
    """Read a part of a page."""
    reader = Reader()
    reader.feed(markup)
    assert reader.open == []
    return reader


def section_html(key: str, record: RunRecord) -> str:
    """Return the HTML of one section of a run's page."""
    context = PageContext(record=record, page=task_page(record.task), predictions=[], gallery=0)
    return render_section(next(section for section in SECTIONS if section.key == key), context)


def gallery_html(task: str, files: list[tuple[Path, list[Any]]], number: int) -> str:
    """Return the gallery of a task; "" where there is none."""
    page = TASK_PAGES[task]
    view = page.gallery(files, number)
    return render_template(page.gallery_template, view) if view else ""


def macro_html(template: str, macro: str, *arguments: Any) -> str:
    """Return what one macro of a template makes of its arguments."""
    return str(getattr(environment().get_template(template).module, macro)(*arguments))
