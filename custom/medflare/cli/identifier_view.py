# SPDX-License-Identifier: Apache-2.0
"""Identifiers of a cohort as tables for people; places, never texts."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from medflare.data.identifier_report import IdentifierReport

EXAMPLES = 3


def print_identifiers(name: str, report: IdentifierReport) -> None:
    """Print kinds with places, DICOM elements and pictures of one cohort."""
    console = Console()
    if not report.places:
        console.print(f"{name}: no identifier found in {report.texts} texts. A detector overlooks some.")
    else:
        _print_places(console, name, report)
    if report.tags:
        console.print(f"filled in {report.headers} DICOM headers")
        table = Table("element", "files")
        for keyword, count in report.tags.most_common():
            table.add_row(escape(keyword), str(count))
        console.print(table)
        console.print("Headers are not trained on; they matter where files or pictures are passed on.")
    if report.burned_in:
        listed = ", ".join(escape(path) for path in report.burned_in[:EXAMPLES])
        console.print(
            f"{len(report.burned_in)} of {report.images} pictures seem to hold text, for instance {listed}. "
            "Look at them.",
            style="yellow",
        )


def _print_places(console: Console, name: str, report: IdentifierReport) -> None:
    counts = Counter(place.identifier.kind for place in report.places)
    examples = defaultdict[str, list[str]](list)
    for place in report.places:
        spot = f"{place.record} {place.field} {place.identifier.start}:{place.identifier.end}"
        examples[place.identifier.kind].append(spot)
    records = len({place.record for place in report.places})
    table = Table("kind", "found", "for instance")
    console.print(f"{escape(name)}: identifiers in {records} of {report.texts} texts")
    for kind, count in counts.most_common():
        table.add_row(kind.replace("_", " "), str(count), escape("; ".join(examples[kind][:EXAMPLES])))
    console.print(table)
    console.print(
        "Record, field and offsets; the text itself is never shown. 'deidentify' in site.yaml acts."
    )
