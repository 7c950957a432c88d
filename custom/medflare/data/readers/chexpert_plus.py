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
    Columns,
    Row,
    SourceRecords,
    chexpert_codes,
    choose_sections,
    find_file,
    parse_number,
    parse_sex,
    read_table,
    select_rows,
)
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FILES = ("df_chexpert_plus_*.csv", "df_chexpert_plus_*.csv.gz")
DEFAULTS: dict[str, str | list[str] | None] = {
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
    """Reads the table in `config.root`; images lie below root, or below its PNG/, JPG/ or images/.

    `day` is the order of the patient's reports, not days: the source gives no dates.
    """
    path = find_file(config.root, FILES, config.file)
    found, rows, bad = read_table(path)
    columns = Columns(path, found, DEFAULTS, config.columns, REQUIRED)
    source = SourceRecords(skipped=bad, has_split=columns.has("split"))
    groups: dict[str, list[Row]] = defaultdict(list)
    for index, row in enumerate(select_rows(path, found, rows, config.select)):
        name = columns.text(row, "image")
        if name:
            groups[name.rsplit("/", 1)[0]].append(row)
        else:
            source.skip(f"{path.name} row {index + 1}", "missing image", "the row names no image")
    source.has_labels = any(chexpert_codes(row) for row in rows[:1])
    for study_id, members in groups.items():
        source.studies.append(_study(path.parent, columns, study_id, members, config.sections))
    return source


def _study(folder: Path, columns: Columns, study_id: str, rows: list[Row], sections: str) -> Study:
    first = rows[0]
    findings, impression = columns.text(first, "findings"), columns.text(first, "impression")
    return Study(
        study_id=study_id,
        patient_id=columns.text(first, "patient_id"),
        images=tuple(_picture(folder, columns.text(row, "image")) for row in rows),
        report=choose_sections(findings, impression, sections),
        split=columns.text(first, "split"),
        codes=chexpert_codes(first),
        view=columns.text(first, "view"),
        age=parse_number(columns.get(first, "age")),
        sex=parse_sex(columns.get(first, "sex")),
        day=parse_number(columns.get(first, "day")),
    )


def _picture(folder: Path, name: str) -> Path:
    """The image as named, or with the suffix and folder of the other downloads."""
    stem = Path(name).with_suffix("")
    guesses = [folder / name]
    guesses += [folder / base / f"{stem}{suffix}" for base in FOLDERS for suffix in SUFFIXES]
    return next((path for path in guesses if path.is_file()), guesses[0])
