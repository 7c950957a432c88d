# SPDX-License-Identifier: Apache-2.0
"""The patient of an image that a report is drafted of, for a model whose words depend on who it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.images import decoding
from medflare.data.readers.common import parse_sex
from medflare.data.readers.dicom_reports import years_of

TAGS = ["PatientAge", "PatientSex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedPatient:
    """Facts about a patient.

    Attributes:
        age: years; sex: "F" or "M"; None for what is not known.
        prior: the report of the visit before; None for a first visit.
    """

    age: float | None = None
    sex: str | None = None
    prior: str | None = None


def patient_of_image(
    path: Path, age: float | None = None, sex: str | None = None, prior: str | None = None
) -> DraftedPatient:
    """Return the patient of an image: what is given, else what a DICOM header says.

    Raises:
        DecodeError: the header cannot be read.
    """
    if not path.name.lower().endswith((*PICTURES, *VOLUMES)) and (age is None or sex is None):
        import pydicom

        with decoding(path):
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
            age = years_of(str(header.get("PatientAge", "") or "")) if age is None else age
            sex = parse_sex(header.get("PatientSex")) if sex is None else sex
    return DraftedPatient(age=age, sex=sex, prior=prior)
