# SPDX-License-Identifier: Apache-2.0
"""Age and sex of the patients of MIMIC-CXR from the patients table of MIMIC-IV (TAR-13).

hosp/patients.csv[.gz]: subject_id, gender, anchor_age (years in anchor_year), anchor_year. Dates and anchor
years of a subject are shifted alike, so that age = anchor_age + year of the study - anchor_year. Subjects
older than 89 have anchor_age 91.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.readers.common import parse_number, parse_sex
from medflare.data.readers.fields import unreadable_fields
from medflare.data.readers.tables import SourceTable, TableRow, find_file, same_names

FILES = ("patients.csv", "patients.csv.gz", "hosp/patients.csv", "hosp/patients.csv.gz")
NAMES = same_names("subject_id", "gender", "anchor_age", "anchor_year")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demographics:
    """Age, sex, covariates of a subject at the time of a study; `unread` as in fields.unreadable_fields."""

    age: float | None = None
    sex: str | None = None
    covariates: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PatientsTable:
    """The rows of the table by subject; empty where none was given. covariates: further columns wanted."""

    rows: dict[str, TableRow] = field(default_factory=dict)
    covariates: tuple[str, ...] = ()

    def at(self, subject: str, date: datetime.datetime | None) -> Demographics:
        """Return the subject when the study was done; without its date the age is that of the anchor year."""
        row = self.rows.get(subject)
        if row is None:
            return Demographics()
        age, year = parse_number(row["anchor_age"]), parse_number(row["anchor_year"])
        unread = unreadable_fields({"age": row["anchor_age"]}, {"age": age})
        if age is not None and year is not None and date is not None:
            age += date.year - year
        further = {name: row[name] for name in self.covariates}
        return Demographics(age=age, sex=parse_sex(row["gender"]), covariates=further, unread=unread)


def read_patients_table(given: Path, covariates: Sequence[str] = ()) -> PatientsTable:
    """Return the patients table at `given`, a file or a folder that holds it.

    Raises:
        DataError: names the file or the columns that are missing.
    """
    if not given.exists():
        raise DataError(f"{given}: no such file or folder. Check 'demographics' in site.yaml.")
    table = SourceTable(find_file(given, FILES), NAMES)
    table.check_covariates(covariates)
    return PatientsTable({str(row["subject_id"]): row for row in table.rows}, tuple(covariates))
