# SPDX-License-Identifier: Apache-2.0
"""MIMIC-CXR-JPG as PhysioNet lays it out, with the reports of MIMIC-CXR.

root/mimic-cxr-2.0.0-{split,metadata,chexpert}.csv[.gz] and root/files/p10/p10000032/s50414267/*.jpg; reports
at files/p10/p10000032/s50414267.txt below `reports`, or below root. The version in the file names may differ.
Age and sex come from the patients table of MIMIC-IV (`demographics`), which shares ids and shifted dates.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.readers.common import (
    Columns,
    Row,
    SourceRecords,
    chexpert_codes,
    choose_sections,
    find_file,
    read_table,
    row_location,
    search_file,
    select_rows,
)
from medflare.data.readers.fields import days_of_dates, parse_date, unreadable_fields
from medflare.data.readers.mimic_iv import PatientsTable, read_patients_table
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

KEYS = ("dicom_id", "study_id", "subject_id")
_NEXT_HEADING = r"(?=^[ \t]*[A-Z][A-Z /,&()'-]{2,60}:|\Z)"


def read(config: CohortConfig) -> SourceRecords:
    """Joins the CSVs on study_id; `select` filters rows of the metadata table (ViewPosition: PA, AP ...)."""
    root = config.root
    split_path = find_file(root, _patterns("split"))
    split_rows = _table(split_path, KEYS)
    metadata = {str(row["dicom_id"]): row for row in _metadata(config)}
    labels = _labels(root)
    source = SourceRecords(has_split=True, has_labels=labels is not None)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in split_rows:
        if not config.select or str(row["dicom_id"]) in metadata:
            groups[str(row["subject_id"]), str(row["study_id"])].append(row)
    persons = _persons(config)
    for (subject, study_id), rows in groups.items():
        names = [str(row["dicom_id"]) for row in rows]
        facts = metadata.get(names[0], {})
        seen = study_time(facts)
        lost = unreadable_fields({"date": facts.get("StudyDate")}, {"date": seen})
        person = persons.at(subject, seen)
        folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study_id}"
        source.studies.append(
            Study(
                study_id=study_id,
                patient_id=subject,
                images=tuple(folder / f"{name}.jpg" for name in names),
                report=_report(config, subject, study_id),
                split=str(rows[0].get("split", "")),
                codes=None if labels is None else labels.get(study_id),
                view=str(facts.get("ViewPosition", "")),
                age=person.age,
                sex=person.sex,
                place=row_location(split_path, rows[0]),
                extra={
                    **person.covariates,
                    **({"date": seen} if seen is not None else {}),
                    **({"unread": lost | person.unread} if lost or person.unread else {}),
                },
            )
        )
    source.studies = days_of_dates(source.studies)
    return source


def _persons(config: CohortConfig) -> PatientsTable:
    wanted = config.visits.covariates if config.visits is not None else ()
    if config.demographics is not None:
        return read_patients_table(config.demographics, wanted)
    if wanted:
        raise DataError(
            f"{config.root}: 'visits.covariates' names {', '.join(wanted)}; MIMIC-CXR has none. Name "
            "MIMIC-IV's patients table in 'demographics'."
        )
    return PatientsTable()


def _patterns(kind: str) -> tuple[str, str]:
    return f"mimic-cxr-*-{kind}.csv", f"mimic-cxr-*-{kind}.csv.gz"


def _table(path: Path, required: tuple[str, ...], select: Mapping[str, Any] | None = None) -> list[Row]:
    found, rows, _ = read_table(path)
    Columns(path, found, {name: name for name in required}, {}, required)
    return list(select_rows(path, found, rows, select or {}))


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


def study_time(facts: Row) -> datetime.datetime | None:
    """When a study was done, from StudyDate (YYYYMMDD) and StudyTime (HHMMSS.f); MIMIC shifts its dates."""
    day = parse_date(facts.get("StudyDate"))
    clock = re.fullmatch(r"(\d{1,6})(?:\.\d*)?", str(facts.get("StudyTime", "")))
    if day is None or clock is None:
        return day
    digits = clock[1].zfill(6)
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 23 or minutes > 59 or seconds > 59:
        return day
    return day + datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
