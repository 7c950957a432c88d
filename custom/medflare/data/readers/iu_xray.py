# SPDX-License-Identifier: Apache-2.0
"""Indiana University chest X-rays (Open-i): the two CSVs of the usual copy, or the original NLMCXR XML files.

CSV layout: indiana_reports.csv (uid, findings, impression ...) and indiana_projections.csv (uid, filename,
projection) with pictures in images/images_normalized/. XML layout: ecgen-radiology/<n>.xml and
NLMCXR_png/CXR<n>_*.png. Each report is one patient; the source has no split.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.common import SourceRecords, choose_sections
from medflare.data.readers.tables import SourceTable, TableRow, find_file, same_names
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FOLDERS = ("images/images_normalized", "images", "NLMCXR_png", "png", ".")
SUFFIXES = ("", ".png", ".jpg", ".dcm")


def read(config: CohortConfig) -> SourceRecords:
    """Read the CSV layout where its files are found, else the XML layout.

    `select` filters the images: rows of indiana_projections.csv, for instance `projection: Frontal`.
    """
    if not config.root.is_dir():
        raise DataError(f"{config.root}: no such folder. Check 'root' in site.yaml.")
    if any(config.root.rglob("indiana_reports.csv")):
        return _read_csvs(config)
    if config.select:
        raise DataError(
            f"{config.root}: 'select' needs indiana_projections.csv; the XML layout has no columns."
        )
    return _read_xml(config)


def _read_csvs(config: CohortConfig) -> SourceRecords:
    reports = SourceTable(
        find_file(config.root, ("indiana_reports.csv", "**/indiana_reports.csv")),
        same_names("uid", "findings", "impression"),
    )
    images = SourceTable(
        find_file(config.root, ("indiana_projections.csv", "**/indiana_projections.csv")),
        same_names("uid", "filename"),
    )
    pictures: dict[str, list[TableRow]] = defaultdict(list)
    for row in images.select(config.select):
        pictures[str(row["uid"])].append(row)
    source = SourceRecords(skipped=reports.unreadable)
    for row in reports.rows:
        uid = str(row["uid"])
        if config.select and uid not in pictures:
            continue
        source.studies.append(
            Study(
                study_id=uid,
                patient_id=uid,
                images=tuple(_picture(reports.path.parent, str(item["filename"])) for item in pictures[uid]),
                report=choose_sections(_text(row["findings"]), _text(row["impression"]), config.sections),
                view=" ".join(sorted({str(item.get("projection", "")) for item in pictures[uid]})).strip(),
            )
        )
    return source


def _read_xml(config: CohortConfig) -> SourceRecords:
    files = sorted(config.root.rglob("*.xml"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise DataError(f"{config.root}: holds neither indiana_reports.csv nor NLMCXR .xml files.")
    source = SourceRecords()
    for path in files:
        try:
            tree = ET.parse(path).getroot()
        except ET.ParseError as error:
            source.skip(path.name, "unreadable report", f"{path}: is not XML: {error}")
            continue
        identity = tree.find("uId")
        record = (identity.get("id") if identity is not None else None) or path.stem
        sections = {
            str(item.get("Label", "")).upper(): _text("".join(item.itertext()))
            for item in tree.iter("AbstractText")
        }
        names = [str(item.get("id")) for item in tree.iter("parentImage") if item.get("id")]
        source.studies.append(
            Study(
                study_id=record,
                patient_id=record,
                images=tuple(_picture(config.root, name) for name in names),
                report=choose_sections(
                    sections.get("FINDINGS", ""), sections.get("IMPRESSION", ""), config.sections
                ),
            )
        )
    return source


def _picture(root: Path, name: str) -> Path:
    """Return where the picture lies among the usual folders; the first guess where it is nowhere."""
    guesses = [root / folder / f"{name}{suffix}" for folder in FOLDERS for suffix in SUFFIXES]
    return next((path for path in guesses if path.is_file()), root / FOLDERS[0] / name)


def _text(value: object) -> str:
    text = "" if value is None else str(value).strip()
    return "" if text.lower() in ("nan", "none", "none.") else text
