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
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.common import SourceRecords, chexpert_codes, choose_sections, section
from medflare.data.readers.fields import days_of_dates, parse_date, unreadable_fields
from medflare.data.readers.mimic_iv import PatientsTable, read_patients_table
from medflare.data.readers.tables import SourceTable, TableRow, find_file, same_names, search_file
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig


def read(config: CohortConfig) -> SourceRecords:
    """Join the CSVs on study_id; `select` filters rows of the metadata table (ViewPosition: PA, AP ...)."""
    root = config.root
    splits = SourceTable(
        find_file(root, _patterns("split")), same_names("dicom_id", "study_id", "subject_id")
    )
    metadata = {str(row["dicom_id"]): row for row in _metadata(config)}
    labels = _labels(root)
    source = SourceRecords(has_split=True, has_labels=labels is not None)
    groups: dict[tuple[str, str], list[TableRow]] = defaultdict(list)
    for row in splits.rows:
        if not config.select or str(row["dicom_id"]) in metadata:
            groups[str(row["subject_id"]), str(row["study_id"])].append(row)
    persons = _persons(config)
    for (subject, study_id), rows in groups.items():
        names = [str(row["dicom_id"]) for row in rows]
        facts = metadata.get(names[0], {})
        date = study_time(facts)
        unread = unreadable_fields({"date": facts.get("StudyDate")}, {"date": date})
        person = persons.at(subject, date)
        unread |= person.unread
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
                place=splits.location(rows[0]),
                extra={
                    **person.covariates,
                    **({"date": date} if date is not None else {}),
                    **({"unread": unread} if unread else {}),
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


def _patterns(table: str) -> tuple[str, str]:
    return f"mimic-cxr-*-{table}.csv", f"mimic-cxr-*-{table}.csv.gz"


def _metadata(config: CohortConfig) -> list[TableRow]:
    """Return the metadata rows that `select` keeps; none where the file is absent and nothing is selected."""
    path = search_file(config.root, _patterns("metadata"))
    if path is None and config.select:
        path = find_file(config.root, _patterns("metadata"))  # says what is missing
    return [] if path is None else list(SourceTable(path, same_names("dicom_id")).select(config.select))


def _labels(root: Path) -> dict[str, tuple[int, ...]] | None:
    """Return study_id -> 14 codes of the CheXpert labeller; None where the file is absent."""
    path = search_file(root, _patterns("chexpert"))
    if path is None:
        return None
    rows = SourceTable(path, same_names("study_id")).rows
    codes_of = {str(row["study_id"]): chexpert_codes(row) for row in rows}
    return {study: codes for study, codes in codes_of.items() if codes is not None}


def _report(config: CohortConfig, subject: str, study_id: str) -> str:
    """Return the wanted sections of a study's text file; "" where there is none."""
    text = report_text(config.reports, config.root, subject, study_id)
    if text is None:
        return ""
    return choose_sections(section(text, "FINDINGS"), section(text, "IMPRESSION"), config.sections)


def report_text(reports: Path | None, root: Path, subject: str, study_id: str) -> str | None:
    """Return the whole text of a study's report; None where there is no file of it.

    Args:
        reports: folder of the reports, where it is not the root.
    """
    bases = [reports] if reports else [root, root / "mimic-cxr-reports"]
    below = Path(f"p{subject[:2]}") / f"p{subject}" / f"s{study_id}.txt"
    for base in bases:
        for path in (base / "files" / below, base / below):
            if path.is_file():
                return path.read_text(encoding="utf-8", errors="replace")
    return None


def study_time(facts: TableRow) -> datetime.datetime | None:
    """Return the time of a study from StudyDate (YYYYMMDD) and StudyTime (HHMMSS.f), which MIMIC shifts."""
    day = parse_date(facts.get("StudyDate"))
    clock = re.fullmatch(r"(\d{1,6})(?:\.\d*)?", str(facts.get("StudyTime", "")))
    if day is None or clock is None:
        return day
    digits = clock[1].zfill(6)
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 23 or minutes > 59 or seconds > 59:
        return day
    return day + datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
