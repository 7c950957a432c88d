# SPDX-License-Identifier: Apache-2.0
"""What a DICOM header says of a picture: a CT is refused, a lateral view or no header is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from medflare.core.errors import DataError
from medflare.data.chest_radiograph import chest_radiograph_warnings
from medflare.data.drafted_patient import DraftedPatient, patient_of_image
from medflare.data.images import DecodeError


def header(path: Path, **tags: str) -> Path:
    """A DICOM file with these tags and no picture."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        SecondaryCaptureImageStorage,
        generate_uid(),
    )
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    for name, value in tags.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)
    return path


CHEST = {"Modality": "DX", "BodyPartExamined": "CHEST", "ViewPosition": "PA"}


def test_a_frontal_radiograph_of_a_chest_raises_no_doubt(tmp_path: Path) -> None:
    assert chest_radiograph_warnings(header(tmp_path / "x.dcm", **CHEST)) == []
    other = CHEST | {"Modality": "CR", "BodyPartExamined": "THORAX", "ViewPosition": "AP"}
    assert chest_radiograph_warnings(header(tmp_path / "y.dcm", **other)) == []


@pytest.mark.parametrize(
    ("tags", "reason", "text"),
    [
        ({"Modality": "CT", "BodyPartExamined": "HEAD"}, "not a radiograph", "its modality is CT; expected"),
        (CHEST | {"Modality": "MG"}, "not a radiograph", "MG"),
        (
            CHEST | {"BodyPartExamined": "HAND"},
            "not a chest",
            "body part examined is HAND; expected CHEST",
        ),
    ],
)
def test_what_is_something_else_is_refused(
    tmp_path: Path, tags: dict[str, str], reason: str, text: str
) -> None:
    with pytest.raises(DecodeError, match=text) as refused:
        chest_radiograph_warnings(header(tmp_path / "x.dcm", **tags))
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (CHEST | {"ViewPosition": "LL"}, ["view LL"]),
        (CHEST | {"Modality": "SC"}, ["modality SC"]),
        ({"Modality": "DX"}, ["no body part"]),
        ({}, ["modality not given", "no body part"]),
    ],
)
def test_what_the_header_leaves_open_is_named(tmp_path: Path, tags: dict[str, str], words: list[str]) -> None:
    warnings = chest_radiograph_warnings(header(tmp_path / "x.dcm", **tags))
    assert [word in warning for word, warning in zip(words, warnings, strict=True)] == [True] * len(words)


def test_a_picture_is_taken_on_trust_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    assert "taken on trust" in chest_radiograph_warnings(tmp_path / "x.png")[0]
    (tmp_path / "x.dcm").write_bytes(b"no DICOM")
    with pytest.raises(DecodeError, match="cannot be decoded"):
        chest_radiograph_warnings(tmp_path / "x.dcm")


def test_the_patient_of_a_draft_is_who_the_header_says(tmp_path: Path) -> None:
    """What a command says comes first; a picture says nothing."""
    said = header(tmp_path / "said.dcm", PatientAge="061Y", PatientSex="F")
    assert patient_of_image(said) == DraftedPatient(age=61, sex="F")
    assert patient_of_image(said, age=40, prior="Clear.") == DraftedPatient(age=40, sex="F", prior="Clear.")
    assert patient_of_image(header(tmp_path / "other.dcm", PatientSex="O")) == DraftedPatient()
    assert patient_of_image(header(tmp_path / "old.dcm", PatientAge="999Y")) == DraftedPatient()
    (tmp_path / "none.dcm").write_text("no DICOM")
    with pytest.raises(DataError, match=r"none\.dcm: cannot be decoded"):
        patient_of_image(tmp_path / "none.dcm")
    assert patient_of_image(tmp_path / "picture.png", sex="M") == DraftedPatient(sex="M")
