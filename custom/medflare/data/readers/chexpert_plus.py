# SPDX-License-Identifier: Apache-2.0
"""CheXpert Plus: df_chexpert_plus_240401.csv, one row per image, studies by the folder in path_to_image.

path_to_image is train/patient42142/study5/view1_frontal.jpg; images may have been converted to .png. The
labels are a separate download and are read only where the table itself carries CheXpert's 14 columns. The
source's split has no test part; `columns: {split: null}` makes a split of train, val and test instead.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from medflare.data.readers.common import (
    SourceRecords,
    chexpert_codes,
    choose_sections,
    parse_number,
    parse_sex,
)
from medflare.data.readers.tables import ColumnMap, SourceTable, TableRow, find_file
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FILES = ("df_chexpert_plus_*.csv", "df_chexpert_plus_*.csv.gz")
FIELDS: ColumnMap = {
    "image": "path_to_image",
    "findings": "section_findings",
    "impression": "section_impression",
    "patient_id": "deid_patient_id",
    "day": "patient_report_date_order",
    "split": "split",
    "age": "age",
    "sex": "sex",
    "view": "frontal_lateral",
}
REQUIRED = ("image", "findings", "impression", "patient_id")
SUFFIXES = (".jpg", ".png", ".dcm")
FOLDERS = ("", "PNG", "JPG", "images")


def read(config: CohortConfig) -> SourceRecords:
    """Read the table in `config.root`; images lie below root, or below its PNG/, JPG/ or images/.

    `day` is the order of the patient's reports, not days: the source gives no dates.
    """
    table = SourceTable(find_file(config.root, FILES, config.file), FIELDS, config.columns, REQUIRED)
    source = SourceRecords(skipped=table.unreadable, has_split=table.has("split"))
    groups: dict[str, list[TableRow]] = defaultdict(list)
    for index, row in enumerate(table.select(config.select)):
        name = table.text(row, "image")
        if name:
            groups[name.rsplit("/", 1)[0]].append(row)
        else:
            source.skip(f"{table.path.name} row {index + 1}", "missing image", "the row names no image")
    source.has_labels = any(chexpert_codes(row) for row in table.rows[:1])
    for study_id, members in groups.items():
        source.studies.append(_study(table, study_id, members, config.sections))
    return source


def _study(table: SourceTable, study_id: str, rows: list[TableRow], sections: str) -> Study:
    first = rows[0]
    findings, impression = table.text(first, "findings"), table.text(first, "impression")
    return Study(
        study_id=study_id,
        patient_id=table.text(first, "patient_id"),
        images=tuple(_picture(table.path.parent, table.text(row, "image")) for row in rows),
        report=choose_sections(findings, impression, sections),
        split=table.text(first, "split"),
        codes=chexpert_codes(first),
        view=table.text(first, "view"),
        age=parse_number(table.get(first, "age")),
        sex=parse_sex(table.get(first, "sex")),
        day=parse_number(table.get(first, "day")),
    )


def _picture(folder: Path, name: str) -> Path:
    """Return the image as named, or with the suffix and folder of the other downloads."""
    stem = Path(name).with_suffix("")
    guesses = [folder / name]
    guesses += [folder / base / f"{stem}{suffix}" for base in FOLDERS for suffix in SUFFIXES]
    return next((path for path in guesses if path.is_file()), guesses[0])
