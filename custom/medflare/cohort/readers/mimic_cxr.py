# SPDX-License-Identifier: Apache-2.0
"""MIMIC-CXR-JPG as PhysioNet lays it out, with the reports of MIMIC-CXR.

root/mimic-cxr-2.0.0-{split,metadata,chexpert}.csv[.gz] and root/files/p10/p10000032/s50414267/*.jpg; reports
at files/p10/p10000032/s50414267.txt below `reports`, or below root. The version in the file names may differ.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medflare.cohort.readers.common import (
    Columns,
    Row,
    Source,
    chexpert_codes,
    choose_sections,
    find_file,
    read_table,
    search_file,
    selected,
)
from medflare.cohort.records import Study

if TYPE_CHECKING:
    from medflare.cohort.settings import CohortConfig

SETTINGS = frozenset({"select", "sections", "reports"})
KEYS = ("dicom_id", "study_id", "subject_id")
_NEXT_HEADING = r"(?=^[ \t]*[A-Z][A-Z /,&()'-]{2,60}:|\Z)"


def read(config: CohortConfig) -> Source:
    """Joins the CSVs on study_id; `select` filters rows of the metadata table (ViewPosition: PA, AP ...)."""
    root = config.root
    split_rows = _table(find_file(root, _patterns("split")), KEYS)
    metadata = {str(row["dicom_id"]): row for row in _metadata(config)}
    labels = _labels(root)
    source = Source(has_split=True, has_labels=labels is not None)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in split_rows:
        if not config.select or str(row["dicom_id"]) in metadata:
            groups[str(row["subject_id"]), str(row["study_id"])].append(row)
    days = _days(groups, metadata)
    for (subject, study_id), rows in groups.items():
        names = [str(row["dicom_id"]) for row in rows]
        folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study_id}"
        source.studies.append(
            Study(
                study_id=study_id,
                patient_id=subject,
                images=tuple(folder / f"{name}.jpg" for name in names),
                report=_report(config, subject, study_id),
                split=str(rows[0].get("split", "")),
                codes=None if labels is None else labels.get(study_id),
                view=str(metadata.get(names[0], {}).get("ViewPosition", "")),
                day=days.get(study_id),
            )
        )
    return source


def _patterns(kind: str) -> tuple[str, str]:
    return f"mimic-cxr-*-{kind}.csv", f"mimic-cxr-*-{kind}.csv.gz"


def _table(path: Path, required: tuple[str, ...], select: Mapping[str, Any] | None = None) -> list[Row]:
    found, rows, _ = read_table(path)
    Columns(path, found, {name: name for name in required}, {}, required)
    return list(selected(path, found, rows, select or {}))


def _metadata(config: CohortConfig) -> list[Row]:
    """The metadata rows that `select` keeps; none where the file is absent and nothing is selected."""
    path = search_file(config.root, _patterns("metadata"))
    if path is None and config.select:
        path = find_file(config.root, _patterns("metadata"))  # says what is missing
    return [] if path is None else _table(path, ("dicom_id",), config.select)


def _labels(root: Path) -> dict[str, tuple[int, ...]] | None:
    """study_id -> 14 codes of the CheXpert labeller; None where the file is absent."""
    path = search_file(root, _patterns("chexpert"))
    if path is None:
        return None
    codes = {str(row["study_id"]): chexpert_codes(row) for row in _table(path, ("study_id",))}
    return {study: found for study, found in codes.items() if found is not None}


def _report(config: CohortConfig, subject: str, study_id: str) -> str:
    """The wanted sections of a study's text file; "" where there is none."""
    bases = [config.reports] if config.reports else [config.root, config.root / "mimic-cxr-reports"]
    below = Path(f"p{subject[:2]}") / f"p{subject}" / f"s{study_id}.txt"
    for base in bases:
        for path in (base / "files" / below, base / below):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                return choose_sections(
                    section(text, "FINDINGS"), section(text, "IMPRESSION"), config.sections
                )
    return ""


def section(text: str, heading: str) -> str:
    """The text under one heading in capitals, joined to one line; "" where the heading is absent.

    Headings such as "FINDINGS AND IMPRESSION:" and "FINAL REPORT ... FINDINGS:" are found too.
    """
    pattern = rf"(?ms)^[ \t]*(?:[A-Z /,&]*\b)?{heading}S?\b[A-Z /,&]*:(.*?){_NEXT_HEADING}"
    return " ".join(" ".join(found.split()) for found in re.findall(pattern, text)).strip()


def _days(groups: Mapping[tuple[str, str], list[Row]], metadata: Mapping[str, Row]) -> dict[str, float]:
    """study_id -> days since the patient's first study; MIMIC's dates are shifted as a whole per patient."""
    dates: dict[str, dict[str, datetime.date]] = defaultdict(dict)
    for (subject, study_id), rows in groups.items():
        stamp = str(metadata.get(str(rows[0]["dicom_id"]), {}).get("StudyDate", "")).split(".")[0]
        if re.fullmatch(r"\d{8}", stamp):
            year, month, day = int(stamp[:4]), int(stamp[4:6]), int(stamp[6:])
            try:
                dates[subject][study_id] = datetime.date(year, month, day)
            except ValueError:
                continue
    return {
        study_id: float((date - min(found.values())).days)
        for found in dates.values()
        for study_id, date in found.items()
    }
