# SPDX-License-Identifier: Apache-2.0
"""Folders of DICOM radiographs with their reports: as structured reports (SR), as text files, or as a table.

Images are grouped by StudyInstanceUID. The report of a study is, in this order: its row of the table `file`
(by study UID, accession number, SOP instance UID, or an image's path or file name), the SR of the same study,
a text file named after the study UID, the accession number or an image file, beside the images or in
`reports`. A name that several studies have, such as IM0001, gives none of them a report. Objects that
are no radiograph of a chest are counted and left out; so are preliminary SR, as a model's drafts are, without
`select: {status: preliminary}`. Date, age, sex and view come from the header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.chest_radiograph import header_problem
from medflare.data.image_files import DICOM, has_dicom_mark
from medflare.data.images import DecodeError, decoding
from medflare.data.readers.annotated import read_text
from medflare.data.readers.common import SourceRecords, choose_sections, parse_number, parse_sex, section
from medflare.data.readers.fields import days_of_dates, parse_date
from medflare.data.readers.tables import ColumnMap, SourceTable, find_file, listing
from medflare.data.records import RecordError, Study
from medflare.data.settings.cohort import CohortConfig

TAGS = [
    *("StudyInstanceUID", "SOPInstanceUID", "AccessionNumber", "PatientID", "PatientAge", "PatientSex"),
    *("StudyDate", "StudyTime", "Modality", "BodyPartExamined", "ViewPosition", "InstanceNumber"),
    "PreliminaryFlag",
]
FIELDS: ColumnMap = {
    "study": ["study", "study_id", "StudyInstanceUID", "study_uid", "AccessionNumber", "accession", "image"],
    "report": ["report", "report_text", "text"],
    "findings": ["findings", "FINDINGS"],
    "impression": ["impression", "IMPRESSION"],
    "split": "split",
}
REQUIRED = ("study",)
PRELIMINARY = "PRELIMINARY"
"""Value of PreliminaryFlag (0040,A496) of a draft."""


@dataclass(slots=True, kw_only=True)
class _Examination:
    """One study of the folder: headers of its images, and its structured reports."""

    images: list[tuple[Path, Any]] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)


def read(config: CohortConfig) -> SourceRecords:
    """Read every DICOM file below `config.root`, whatever its name.

    Raises:
        DataError: the folder has no DICOM file, or the table of reports has no column of ours.
    """
    if not config.root.is_dir():
        raise DataError(f"{config.root}: no such folder. Check 'root' in site.yaml.")
    if config.select not in ({}, {"status": "preliminary"}):
        raise DataError(f"{config.root}: 'select' can be {{status: preliminary}} here, or left out.")
    source, left_out = SourceRecords(), Counter[str]()
    examinations = _examinations(config.root, source, left_out, bool(config.select))
    if not examinations:
        raise DataError(f"{config.root}: expected DICOM files; the folder holds {listing(config.root)}.")
    table = _reports_of_table(config, source)
    texts = _text_files(config)
    names = {uid: list(_keys(uid, part, config.root)) for uid, part in examinations.items()}
    studies_of = Counter(name for found in names.values() for name in set(found))
    for uid, examination in examinations.items():
        if not examination.images:
            left_out["study without a radiograph of a chest"] += 1
            continue
        with source.skipping(uid):
            unique = [name for name in names[uid] if studies_of[name] == 1]
            row = next((table[name] for name in unique if name in table), None)
            if row is None and (text := _written_report(examination, unique, texts, config)):
                row = (text, "")
            if row is None:
                shared = next((name for name in names[uid] if name in table or name in texts), "")
                raise _no_report(shared, studies_of[shared])
            report, split = row
            source.studies.append(_study(uid, examination, report, split))
    source.studies = days_of_dates(source.studies)
    source.has_split = bool(source.studies) and all(study.split for study in source.studies)
    source.left_out = dict(+left_out)
    return source


def _examinations(
    root: Path, source: SourceRecords, left_out: Counter[str], drafts: bool
) -> dict[str, _Examination]:
    """Return study UID -> what the folder has of it, in the order of file names."""
    examinations: dict[str, _Examination] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file() and _may_be_dicom(path)):
        header = _header(path, source)
        if header is None:
            continue
        uid = str(header.get("StudyInstanceUID", "") or "")
        if not uid:
            source.skip(path.name, "no study", f"{path}: has no StudyInstanceUID")
            continue
        examination = examinations.setdefault(uid, _Examination())
        if header.get("Modality") == "SR":
            if header.get("PreliminaryFlag") == PRELIMINARY and not drafts:
                left_out["preliminary report (SR)"] += 1
            else:
                examination.reports.append(path)
        elif (problem := header_problem(header)) is not None:
            left_out[f"object that is {problem.reason}"] += 1
        else:
            examination.images.append((path, header))
    return examinations


def _may_be_dicom(path: Path) -> bool:
    """Return whether a file has DICOM's mark behind the preamble; or a name that says so."""
    return path.suffix.lower() in DICOM or has_dicom_mark(path)


def _header(path: Path, source: SourceRecords) -> Any | None:
    import pydicom

    try:
        with decoding(path):
            return pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
    except DecodeError as error:
        source.skip(path.name, error.reason, str(error))
        return None


def _reports_of_table(config: CohortConfig, source: SourceRecords) -> dict[str, tuple[str, str]]:
    """Return identifier of a study or image -> (report, split) of the table `file`."""
    if config.file is None:
        return {}
    path = find_file(config.root, (), config.file)
    table = SourceTable(path, FIELDS, config.columns, REQUIRED)
    if not (table.has("report") or table.has("findings") or table.has("impression")):
        raise DataError(
            f"{path}: no column holds the report. Columns found: {', '.join(table.columns)}. Name it in "
            "site.yaml as columns: {report: ...}, or columns: {findings: ..., impression: ...}."
        )
    source.skipped += table.unreadable
    reports = {}
    for row in table.rows:
        report = table.text(row, "report") or choose_sections(
            table.text(row, "findings"), table.text(row, "impression"), config.sections
        )
        reports[table.text(row, "study")] = (report, table.text(row, "split"))
    return reports


def _keys(uid: str, examination: _Examination, root: Path) -> Iterator[str]:
    """Yield the names under which a table or a text file may hold the report of a study."""
    yield uid
    for path, header in examination.images:
        tags = (str(header.get(tag, "") or "").strip() for tag in ("AccessionNumber", "SOPInstanceUID"))
        yield from (tag for tag in tags if tag)
        yield path.relative_to(root).as_posix()
        yield path.name
        yield path.stem


def _no_report(shared: str, studies: int) -> RecordError:
    """Return the error of a study that has no report, or only one that may be another's.

    Args:
        shared: a name of the study that the table or a text file has, "" where there is none.
        studies: how many studies have that name.
    """
    if not shared:
        return RecordError("no report", "no row of a table, no SR with text and no .txt file belongs to it")
    return RecordError(
        "ambiguous report",
        f"the report of {shared!r} may belong to any of {studies} studies; name it by its StudyInstanceUID",
    )


def _text_files(config: CohortConfig) -> dict[str, Path]:
    folders = [config.root, *([] if config.reports is None else [config.reports])]
    return {path.stem: path for folder in folders for path in sorted(folder.rglob("*.txt"))}


def _written_report(
    examination: _Examination, names: list[str], texts: dict[str, Path], config: CohortConfig
) -> str:
    """Return the report of a study's SR, else of its text file, "" where it has neither.

    Raises:
        RecordError: what it has cannot be read.
    """
    for path in examination.reports:
        if text := _structured_report(path, config):
            return text
    file = next((texts[name] for name in names if name in texts), None)
    if file is None:
        return ""
    text = read_text(file)
    return choose_sections(section(text, "FINDINGS"), section(text, "IMPRESSION"), config.sections) or text


def _structured_report(path: Path, config: CohortConfig) -> str:
    """Return the text of a DICOM SR: its findings and impression by their concept names, else all text."""
    import pydicom

    with decoding(path):
        items = list(_text_items(pydicom.dcmread(path)))
    named = {"finding": "", "impression": ""}
    for name, text in items:
        for part in named:
            if part in name.lower() or (part == "impression" and "conclusion" in name.lower()):
                named[part] = f"{named[part]}\n{text}".strip()
    chosen = choose_sections(named["finding"], named["impression"], config.sections)
    return chosen or "\n".join(text for _, text in items)


def _text_items(item: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (concept name, text) of every TEXT item of an SR's tree, in reading order."""
    if depth > 32:  # the standard's templates nest less than ten deep
        return
    if str(item.get("ValueType", "")) == "TEXT":
        concepts = item.get("ConceptNameCodeSequence") or []
        yield (str(concepts[0].get("CodeMeaning", "")) if concepts else ""), str(item.get("TextValue", ""))
    for child in item.get("ContentSequence") or []:
        yield from _text_items(child, depth + 1)


def _study(uid: str, examination: _Examination, report: str, split: str) -> Study:
    images = sorted(examination.images, key=lambda image: (_number(image[1]), image[0]))
    header = images[0][1]
    when = f"{header.get('StudyDate', '') or ''}T{str(header.get('StudyTime', '') or '')[:6] or '000000'}"
    date = parse_date(when)
    return Study(
        study_id=uid,
        patient_id=str(header.get("PatientID", "") or uid),
        images=tuple(path for path, _ in images),
        report=report,
        split=split,
        view=" ".join(sorted({str(image.get("ViewPosition", "") or "") for _, image in images})).strip(),
        age=parse_number(header.get("PatientAge")),
        sex=parse_sex(header.get("PatientSex")),
        place=images[0][0].name,
        extra={} if date is None else {"date": date},
    )


def _number(header: Any) -> float:
    return parse_number(header.get("InstanceNumber")) or 0.0
