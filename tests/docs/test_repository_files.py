# SPDX-License-Identifier: Apache-2.0
"""Files that other programs read: the citation, the issue forms, and the version they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from medflare.version import __version__

ROOT = Path(__file__).parents[2]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def test_the_citation_names_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_newest_heading_of_the_changelog_is_the_version_under_way() -> None:
    headings = re.findall(r"^## (\S+)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == (__version__.removesuffix(".dev0"), " (unreleased)" if "dev" in __version__ else "")
    assert all(not more or re.fullmatch(r" \(\d{4}-\d\d-\d\d\)", more) for _, more in headings[1:])


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_github_asks_for(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    assert content["name"]
    assert content["description"]
    asked = [part for part in content["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) > 0
    assert all(part["attributes"]["label"] for part in asked)
    dropdowns = [part for part in asked if part["type"] in ("dropdown", "checkboxes")]
    assert all(part["attributes"]["options"] for part in dropdowns)


def test_every_page_is_in_the_navigation() -> None:
    """A page that is in no navigation makes `mkdocs build --strict` fail, minutes after it was written."""
    named = set(re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - named == set()


def test_a_bug_report_asks_for_no_patient_data() -> None:
    assert "No patient data" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()


def test_stars_of_significance_are_no_emphasis() -> None:
    """Two of them in a paragraph or a cell would vanish from the site and set what is between in italics."""
    star = re.compile(r"(?<=[0-9%])\*(?!\*)")
    wrong = []
    for page in (ROOT / "docs").rglob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            text = re.sub(r"`[^`]*`", "", line)
            parts = text.split("|") if line.startswith("|") else [text]
            wrong += [f"{page.name}: {part.strip()}" for part in parts if len(star.findall(part)) > 1]
    assert wrong == []
