# SPDX-License-Identifier: Apache-2.0
"""The patient of an image that a report is drafted of, for a model whose words depend on who it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.images import DecodeError, decoding
from medflare.data.readers.common import parse_sex
from medflare.data.readers.dicom_reports import years_of

TAGS = ["PatientAge", "PatientSex"]
OLDEST = 130
"""Years, as in FedTAR's profiles and the option --age."""


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

    def lacks(self, facts: Iterable[str]) -> list[str]:
        """Return those of `facts`, of "age" and "sex", that are not known."""
        known = {"age": self.age, "sex": self.sex}
        return [fact for fact in facts if known[fact] is None]


def patient_of_image(
    path: Path, age: float | None = None, sex: str | None = None, prior: str | None = None
) -> DraftedPatient:
    """Return the patient of an image: what is given, else what a DICOM header says.

    An age in the header that nobody has counts as unknown: it costs no other image its draft.

    Raises:
        DataError: the header cannot be read.
    """
    if not path.name.lower().endswith((*PICTURES, *VOLUMES)) and (age is None or sex is None):
        import pydicom

        try:
            with decoding(path):
                header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
                years = years_of(str(header.get("PatientAge", "") or ""))
                stated = parse_sex(header.get("PatientSex"))
        except DecodeError as error:
            raise DataError(f"{error}.") from None
        possible = years is not None and 0 <= years <= OLDEST
        age = years if age is None and possible else age
        sex = stated if sex is None else sex
    return DraftedPatient(age=age, sex=sex, prior=prior)
