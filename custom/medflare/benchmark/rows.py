# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set as the benchmark sees them, one study after the other, never all of them at once."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.readers.common import chexpert_codes, parse_number, parse_sex, section
from medflare.data.readers.mimic_cxr import report_text, study_time
from medflare.data.readers.mimic_iv import PatientsTable, read_patients_table
from medflare.data.readers.tables import find_file, search_file
from medflare.data.splits import split_name
from medflare.labelling.labels import label_report

WHERE = {
    "mimic_cxr": "MIMIC-CXR-JPG 2.0.0 or 2.1.0, physionet.org/content/mimic-cxr-jpg (credentialed access); "
    "its reports are mimic-cxr-reports.zip of physionet.org/content/mimic-cxr",
    "chexpert_plus": "CheXpert Plus, aimi.stanford.edu/datasets/chexpert-plus: df_chexpert_plus_240401.csv",
    "iu_xray": "IU X-Ray, openi.nlm.nih.gov, or R2Gen's copy of it with annotation.json and images/",
}
"""Source -> where it is had from, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One study: what a manifest will say of it.

    Attributes:
        images: below the source's root.
        findings: cleaned of line breaks; may be empty.
        codes: 14 values of Code.
        day: the date as YYYYMMDD, or the order of a patient's studies; None where unknown.
    """

    study_id: str
    patient_id: str
    images: tuple[str, ...]
    findings: str
    split: str
    codes: tuple[int, ...]
    view: str = ""
    age: float | None = None
    sex: str | None = None
    date: str = ""
    day: float | None = None


def table_rows(path: Path, *columns: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file, also gzipped, one at a time.

    Raises:
        DataError: a column is missing, or the file is damaged.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            found = Counter(reader.fieldnames or [])
            if twice := [name for name, count in found.items() if count > 1]:
                raise DataError(
                    f"{path}: has the column {', '.join(twice)} more than once, of which a row holds the "
                    "last alone. Download it again."
                )
            if missing := [name for name in columns if name not in found]:
                there = ", ".join(found)
                raise DataError(
                    f"{path}: has no column {', '.join(missing)}; it has {there}. "
                    "Is it another version of the data set?"
                )
            yield from reader
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}. Download it again.") from None


def lists_of(source: str, root: Path) -> list[Path]:
    """Return the files that list a source's studies; their digests decide whether an index is still good.

    Raises:
        DataError: one is missing; says where the source is had from.
    """
    patterns: dict[str, tuple[tuple[tuple[str, ...], bool], ...]] = {
        "mimic_cxr": (
            (_mimic("split"), True),
            (_mimic("metadata"), False),
            (_mimic("chexpert"), False),
        ),
        "chexpert_plus": ((("df_chexpert_plus_*.csv", "df_chexpert_plus_*.csv.gz"), True),),
        "iu_xray": (
            (("annotation.json", "*/annotation.json"), False),
            (("indiana_reports.csv", "**/indiana_reports.csv"), False),
            (("indiana_projections.csv", "**/indiana_projections.csv"), False),
        ),
    }
    found = []
    for names, needed in patterns[source]:
        try:
            path = find_file(root, names) if needed else search_file(root, names)
        except DataError as error:
            raise DataError(f"{error} It is {WHERE[source]}.") from None
        if path is not None:
            found.append(path)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder. It is {WHERE[source]}.")
    return found


def _mimic(kind: str) -> tuple[str, str]:
    return f"mimic-cxr-*-{kind}.csv", f"mimic-cxr-*-{kind}.csv.gz"


def mimic_rows(root: Path, reports: Path | None, demographics: Path | None = None) -> Iterator[BenchmarkRow]:
    """Yield MIMIC-CXR's studies in the order of the split list; dates and views where metadata is there.

    Args:
        demographics: MIMIC-IV's patients table, for age and sex.

    Raises:
        DataError: the split list is missing or is not grouped as it should be, or no report is found.
    """
    labels = _mimic_labels(root)
    facts = _mimic_facts(root)
    persons = PatientsTable() if demographics is None else read_patients_table(demographics, ())
    images: dict[str, list[str]] = {}
    owners: dict[str, tuple[str, str]] = {}
    path = find_file(root, _mimic("split"))
    for row in table_rows(path, "dicom_id", "study_id", "subject_id", "split"):
        study = row["study_id"]
        images.setdefault(study, []).append(row["dicom_id"])
        owners[study] = row["subject_id"], row["split"]
    found = 0
    for number, (study, names) in enumerate(images.items()):
        subject, split = owners[study]
        text = report_text(reports, root, subject, study)
        found += text is not None
        if number == 2000 and not found:
            break
        findings = section(text or "", "FINDINGS")
        date, view = facts.get(study, ("", ""))
        person = persons.at(subject, study_time({"StudyDate": date[:8], "StudyTime": date[8:]}))
        folder = f"files/p{subject[:2]}/p{subject}/s{study}"
        yield BenchmarkRow(
            study_id=study,
            patient_id=subject,
            images=tuple(f"{folder}/{name}.jpg" for name in names),
            findings=findings,
            split=_known_split(split, path),
            codes=labels.get(study) or label_report(findings),
            view=view,
            age=person.age,
            sex=person.sex,
            date=date,
        )
    if not found:
        base = reports or root
        raise DataError(
            f"{base}: holds no report; expected {base}/files/p10/p10000032/s50414267.txt and so on. Name the "
            f"folder of mimic-cxr-reports with --reports. It is {WHERE['mimic_cxr']}."
        )


def _known_split(value: str, path: Path) -> str:
    """Return our name of a split of a list; DataError where it has none of the three."""
    name = split_name(value)
    if name is None:
        raise DataError(
            f"{path}: has the split {value!r}; expected train, validate or test. Is it another list?"
        )
    return name


def _mimic_labels(root: Path) -> dict[str, tuple[int, ...]]:
    path = search_file(root, _mimic("chexpert"))
    if path is None:
        return {}
    coded = ((row["study_id"], chexpert_codes(row)) for row in table_rows(path, "study_id"))
    return {study: codes for study, codes in coded if codes is not None}


def _mimic_facts(root: Path) -> dict[str, tuple[str, str]]:
    """Return study_id -> (date and time of its first image, as texts that sort; its view)."""
    path = search_file(root, _mimic("metadata"))
    if path is None:
        return {}
    facts: dict[str, tuple[str, str]] = {}
    for row in table_rows(path, "dicom_id", "study_id"):
        clock = str(row.get("StudyTime") or "").split(".")[0].zfill(6)
        date = str(row.get("StudyDate") or "")
        facts.setdefault(row["study_id"], (f"{date}{clock}" if date else "", row.get("ViewPosition") or ""))
    return facts


def chexpert_rows(root: Path) -> Iterator[BenchmarkRow]:
    """Yield CheXpert Plus's studies; `day` orders a patient's reports, `valid` is the test (BM-5)."""
    path = lists_of("chexpert_plus", root)[0]
    columns = ("path_to_image", "section_findings", "deid_patient_id", "split")
    images: dict[str, list[str]] = {}
    for row in table_rows(path, *columns):
        name = row["path_to_image"]
        images.setdefault(name.rsplit("/", 1)[0], []).append(name)
    for row in table_rows(path, *columns):
        study = row["path_to_image"].rsplit("/", 1)[0]
        names = images.pop(study, None)
        if not names:
            continue
        findings = " ".join((row["section_findings"] or "").split())
        yield BenchmarkRow(
            study_id=study,
            patient_id=row["deid_patient_id"],
            images=tuple(names),
            findings=findings,
            split="train" if split_name(row["split"]) == "train" else "test",
            codes=chexpert_codes(row) or label_report(findings),
            view=row.get("frontal_lateral") or "",
            age=parse_number(row.get("age")),
            sex=parse_sex(row.get("sex")),
            day=parse_number(row.get("patient_report_date_order")),
        )


def to_line(row: BenchmarkRow) -> str:
    """Return a row as a line of an index."""
    values = {name: getattr(row, name) for name in BenchmarkRow.__dataclass_fields__}
    return json.dumps(values, ensure_ascii=False) + "\n"


def from_line(line: str) -> BenchmarkRow:
    """Return the row of a line of an index."""
    values: Mapping[str, Any] = json.loads(line)
    return BenchmarkRow(**{**values, "images": tuple(values["images"]), "codes": tuple(values["codes"])})
