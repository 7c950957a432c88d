# SPDX-License-Identifier: Apache-2.0
"""Every cited resolution id has an anchor in docs/methods; no document outside the repository is cited."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("custom", "jobs", "benchmarks", "tools", "docs", "tests", "provisioning")
PREFIXES = ("MRG", "TAR", "ML", "VG", "DD", "ST", "BL", "BM")
ID = re.compile(rf"\b({'|'.join(PREFIXES)})-(\d+)\b")
RANGE = re.compile(rf"\b({'|'.join(PREFIXES)})-(\d+)(?: to |\.\.| - )(?:\1-)?(\d+)\b")
ANCHOR = re.compile(rf"\{{#((?:{'|'.join(PREFIXES)})-\d+)\}}")
OUTSIDE = re.compile(r"\b(algorithms|design|engine|evidence|style)\.md\b")
TEXT = {".py", ".md", ".yaml", ".yml", ".json", ".html", ".j2", ".css", ".cfg", ".toml", ".sh"}


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every tracked text file of the rooms."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in TEXT and path.is_file() and path != Path(__file__):
            yield name, path.read_text(encoding="utf-8")


def cited(text: str) -> set[str]:
    """Return every id that `text` names, ends of ranges and what lies between them included."""
    ids = {f"{prefix}-{number}" for prefix, number in ID.findall(text)}
    for prefix, first, last in RANGE.findall(text):
        ids |= {f"{prefix}-{number}" for number in range(int(first), int(last) + 1)}
    return ids


def anchors() -> list[str]:
    """Return the ids that are anchors of docs/methods, in order."""
    pages = sorted((ROOT / "docs" / "methods").glob("*.md"))
    return [anchor for page in pages for anchor in ANCHOR.findall(page.read_text(encoding="utf-8"))]


def test_ranges_are_read_whole() -> None:
    assert cited("DD-1 to DD-3; ML-1..4, TAR-2") == {
        *("DD-1", "DD-2", "DD-3"),
        *("ML-1", "ML-2", "ML-3", "ML-4", "TAR-2"),
    }


def test_every_cited_id_has_one_anchor() -> None:
    known = anchors()
    assert len(known) == len(set(known))
    assert len(known) > 80
    unknown = {name: sorted(ids) for name, text in files() if (ids := cited(text) - set(known))}
    assert unknown == {}


def test_no_document_outside_the_repository_is_cited() -> None:
    found = [
        f"{name}:{number}"
        for name, text in files()
        for number, line in enumerate(text.splitlines(), 1)
        if OUTSIDE.search(line)
    ]
    assert found == []
