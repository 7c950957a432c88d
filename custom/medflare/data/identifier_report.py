# SPDX-License-Identifier: Apache-2.0
"""Identifiers in a hospital's files: counts and places, never the text itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.data.deidentification import IdentifierPlace, places
from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.images import DecodeError, decoding, read_image
from medflare.data.records import RecordLists
from medflare.identifiers.dicom_tags import identifying_tags, says_burned_in
from medflare.identifiers.kinds import Detector
from medflare.identifiers.pixels import burned_in_text


@dataclass(slots=True, kw_only=True)
class IdentifierReport:
    """Identifiers of a cohort.

    Attributes:
        texts: how many were read; places: of what was found in them.
        headers: DICOM files read; tags: keyword of an element that may identify -> files that fill it.
        images: pictures looked at; burned_in: files whose header or pixels say that they hold text.
    """

    texts: int = 0
    places: list[IdentifierPlace] = field(default_factory=list)
    headers: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    images: int = 0
    burned_in: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return counts, and the places by record, field, kind and offsets."""
        return {
            "texts": self.texts,
            "kinds": dict(Counter(place.identifier.kind for place in self.places).most_common()),
            "records": len({place.record for place in self.places}),
            "places": [
                {
                    "record": place.record,
                    "field": place.field,
                    "kind": place.identifier.kind,
                    "start": place.identifier.start,
                    "end": place.identifier.end,
                }
                for place in self.places
            ],
            "dicom_headers": self.headers,
            "dicom_tags": dict(self.tags.most_common()),
            "images": self.images,
            "burned_in": self.burned_in,
        }


def report_identifiers(records: RecordLists, detector: Detector, pixels: bool = True) -> IdentifierReport:
    """Return what texts, DICOM headers and, with `pixels`, pictures of a cohort hold."""
    report = IdentifierReport(texts=len(records.studies) + len(records.notes) + 2 * len(records.summaries))
    report.places = list(places(records, detector))
    paths = dict.fromkeys(path for study in records.studies for path in study.images if path.is_file())
    _look_at_files(paths, report, pixels)
    return report


def _look_at_files(paths: Iterable[Path], report: IdentifierReport, pixels: bool) -> None:
    import pydicom

    for path in paths:
        name = path.name.lower()
        flagged = False
        try:
            if not name.endswith((*PICTURES, *VOLUMES)):
                with decoding(path):
                    header = pydicom.dcmread(path, stop_before_pixels=True)
                    report.tags.update(identifying_tags(header))
                    flagged = says_burned_in(header)
                report.headers += 1
            if pixels and not flagged and not name.endswith(VOLUMES):
                report.images += 1
                flagged = burned_in_text(read_image(path))
        except DecodeError:  # `inspect` lists it among what cannot be used
            continue
        if flagged:
            report.burned_in.append(str(path))
