# SPDX-License-Identifier: Apache-2.0
"""Folders of DICOM radiographs with their reports: as structured reports (SR), as text files, or as a table.

Images are grouped by StudyInstanceUID. The report of a study is, in this order: its row of the table `file`
(by study UID, accession number, SOP instance UID, or an image's path or file name), the SR of the same study,
a text file. That is named after the study UID or the accession number, wherever below `root` or `reports` it
lies, or after an image file: beside it, in a folder of the same path in `reports`, or in none. A name that
several studies have, such as IM0001, gives none of them a report, and neither do two reports that differ.
Objects that are no radiograph of a chest are counted and left out; so are preliminary SR, as a model's drafts
are, without `select: {status: preliminary}`. Date, age, sex and view come from the header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.core.file_names import without_ending
from medflare.data.chest_radiograph import header_problem
from medflare.data.image_files import may_be_dicom
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
    *("PreliminaryFlag", "SOPClassUID"),
]
FIELDS: ColumnMap = {
    "study": ["study", "study_id", "StudyInstanceUID", "study_uid", "AccessionNumber", "accession", "image"],
    "report": ["report", "report_text", "text"],
    "findings": ["findings", "FINDINGS"],
    "impression": ["impression", "IMPRESSION"],
    "split": "split",
}
REQUIRED = ("study",)
REPORT_CLASSES = frozenset(f"1.2.840.10008.5.1.4.1.1.88.{number}" for number in (11, 22, 33, 34))
"""SOP classes of SR that hold a report: basic text, enhanced, comprehensive, comprehensive 3D. Others hold
doses, logs and findings of other programs."""
A_YEAR = {"Y": 1.0, "M": 12.0, "W": 365.25 / 7, "D": 365.25}
"""Unit of an age string -> how many make a year."""
PRELIMINARY = "PRELIMINARY"
"""Value of PreliminaryFlag (0040,A496) of a draft."""


@dataclass(slots=True, kw_only=True)
class _Examination:
    """One study of the folder: headers of its images, its structured reports, and its other objects."""

    images: list[tuple[Path, Any]] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


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
    # How many studies have a name; a file whose study is not known counts as a study of its own.
    examinations, studies_of = _examinations(config.root, source, left_out, bool(config.select))
    if not examinations:
        raise DataError(f"{config.root}: expected DICOM files; the folder holds {listing(config.root)}.")
    table = _reports_of_table(config, source)
    texts = _text_files(config)
    names = {uid: list(_keys(uid, part, config.root)) for uid, part in examinations.items()}
    for uid, examination in examinations.items():
        others = (name for path in examination.others for name in _file_names(path, config.root))
        studies_of.update({*names[uid], *others})
    for uid, examination in examinations.items():
        if not examination.images:
            left_out["study without a radiograph of a chest"] += 1
            continue
        with source.skipping(uid):
            unique = [name for name in names[uid] if studies_of[name] == 1]
            row = _row_of(unique, table)
            if row is None and (text := _written_report(examination, unique, texts, config)):
                row = (text, "")
            if row is None:
                shared = [name for name in names[uid] if studies_of[name] > 1]
                found = next((name for name in shared if name in table or name in texts), "")
                raise _no_report(found, studies_of[found])
            report, split = row
            source.studies.append(_study(uid, examination, report, split))
    source.studies = days_of_dates(source.studies)
    source.has_split = any(study.split for study in source.studies)
    source.left_out = dict(+left_out)
    return source


def _examinations(
    root: Path, source: SourceRecords, left_out: Counter[str], drafts: bool
) -> tuple[dict[str, _Examination], Counter[str]]:
    """Return study UID -> what the folder has of it, in the order of file names; and the names of files of
    which nobody knows the study."""
    examinations: dict[str, _Examination] = {}
    unknown = Counter[str]()
    for path in sorted(path for path in root.rglob("*") if path.is_file() and may_be_dicom(path)):
        header = _header(path, source)
        if header is None:
            unknown.update(set(_file_names(path, root)))
            continue
        uid = str(header.get("StudyInstanceUID", "") or "")
        if not uid:
            unknown.update(set(_file_names(path, root)))
            source.skip(path.name, "no study", f"{path}: has no StudyInstanceUID")
            continue
        examination = examinations.setdefault(uid, _Examination())
        if header.get("Modality") == "SR":
            kind = str(header.get("SOPClassUID", "") or "")
            if kind and kind not in REPORT_CLASSES:
                left_out["SR that is no report"] += 1
            elif header.get("PreliminaryFlag") == PRELIMINARY and not drafts:
                left_out["preliminary report (SR)"] += 1
            else:
                examination.reports.append(path)
        elif (problem := header_problem(header)) is not None:
            left_out[f"object that is {problem.reason}"] += 1
            examination.others.append(path)
        else:
            examination.images.append((path, header))
    return examinations, unknown


def _header(path: Path, source: SourceRecords) -> Any | None:
    import pydicom

    try:
        with decoding(path):
            return pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
    except DecodeError as error:
        source.skip(path.name, error.reason, str(error))
        return None


def _reports_of_table(config: CohortConfig, source: SourceRecords) -> dict[str, list[tuple[str, str]]]:
    """Return identifier of a study or image -> (report, split) of each of its rows of the table `file`."""
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
    reports: dict[str, list[tuple[str, str]]] = {}
    for row in table.rows:
        report = table.text(row, "report") or choose_sections(
            table.text(row, "findings"), table.text(row, "impression"), config.sections
        )
        reports.setdefault(table.text(row, "study"), []).append((report, table.text(row, "split")))
    return reports


def _row_of(names: list[str], table: dict[str, list[tuple[str, str]]]) -> tuple[str, str] | None:
    """Return (report, split) of the first of the names that the table has; None where it has none.

    Raises:
        RecordError: it has several rows of that name, which differ.
    """
    name = next((name for name in names if name in table), None)
    if name is None:
        return None
    if len(set(table[name])) > 1:
        detail = f"{len(table[name])} rows of the table are named {name!r}, and differ; leave one"
        raise RecordError("ambiguous report", detail)
    return table[name][0]


def _keys(uid: str, examination: _Examination, root: Path) -> Iterator[str]:
    """Yield the names under which a table or a text file may hold the report of a study."""
    yield uid
    for path, header in examination.images:
        tags = (str(header.get(tag, "") or "").strip() for tag in ("AccessionNumber", "SOPInstanceUID"))
        yield from (tag for tag in tags if tag)
        yield from _file_names(path, root)


def _file_names(path: Path, root: Path) -> Iterator[str]:
    """Yield the names that a report may have of an image file: with its folders, and without."""
    inside, bare = path.relative_to(root), without_ending(path.name)
    yield inside.as_posix()
    yield inside.with_name(bare).as_posix()
    yield path.name
    yield bare


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


def _text_files(config: CohortConfig) -> dict[str, list[Path]]:
    """Return name -> the text files that have it: with their folders below `root` or `reports`, or alone."""
    texts: dict[str, list[Path]] = {}
    for folder in dict.fromkeys([config.root, config.reports or config.root]):
        for path in sorted(folder.rglob("*.txt")):
            inside = path.relative_to(folder)
            for name in dict.fromkeys((inside.with_suffix("").as_posix(), path.stem)):
                texts.setdefault(name, []).append(path)
    return texts


def _written_report(
    examination: _Examination, names: list[str], texts: dict[str, list[Path]], config: CohortConfig
) -> str:
    """Return the report of a study's SR, else of its text file, "" where it has neither.

    Raises:
        RecordError: what it has cannot be read, or it has several that differ.
    """
    for path in examination.reports:
        if text := _structured_report(path, config):
            return text
    for name in names:
        found = _texts_of(name, examination, texts, config)
        written = {file: read_text(file) for file in found}
        if len(set(written.values())) > 1:
            listed = ", ".join(str(file) for file in found[:5])
            detail = f"{len(found)} text files are named {name!r}, and differ: {listed}; leave one"
            raise RecordError("ambiguous report", detail)
        if written:
            text = written[found[0]]
            return _wanted(section(text, "FINDINGS"), section(text, "IMPRESSION"), text, config)
    return ""


def _texts_of(
    name: str, examination: _Examination, texts: dict[str, list[Path]], config: CohortConfig
) -> list[Path]:
    """Return the text files of a name; of an image's bare name none in a folder of other images."""
    found = texts.get(name, [])
    bare = {part for path, _ in examination.images for part in (path.name, without_ending(path.name))}
    if name not in bare:
        return found
    near = {path.parent for path, _ in examination.images} | {config.root, config.reports}
    return [path for path in found if path.parent in near]


def _structured_report(path: Path, config: CohortConfig) -> str:
    """Return the text of a DICOM SR: its findings and impression by their concept names."""
    import pydicom

    with decoding(path):
        items = list(_text_items(pydicom.dcmread(path)))
    named = {"finding": "", "impression": ""}
    for name, text in items:
        for part in named:
            if part in name.lower() or (part == "impression" and "conclusion" in name.lower()):
                named[part] = f"{named[part]}\n{text}".strip()
    return _wanted(named["finding"], named["impression"], "\n".join(text for _, text in items), config)


def _wanted(findings: str, impression: str, whole: str, config: CohortConfig) -> str:
    """Return the sections that the site wants; the whole text where it is not divided into any."""
    if findings or impression:
        return choose_sections(findings, impression, config.sections)
    return whole


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
        age=years_of(str(header.get("PatientAge", "") or "")),
        sex=parse_sex(header.get("PatientSex")),
        place=images[0][0].name,
        extra={} if date is None else {"date": date},
    )


def years_of(age: str) -> float | None:
    """Return the years of a DICOM age string, such as 045Y, 018M, 003W or 010D; None where it is none."""
    number, unit = parse_number(age[:-1]), A_YEAR.get(age[-1:].upper())
    return parse_number(age) if unit is None or number is None else number / unit


def _number(header: Any) -> float:
    return parse_number(header.get("InstanceNumber")) or 0.0
