# SPDX-License-Identifier: Apache-2.0
"""Files of drafts: plain text, FHIR, and DICOM structured reports.

What the header of an image says of the patient is left out unless the caller asks for it. highdicom copies
name, number, birth date and sex of the evidence into a structured report, so it is given a stripped copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError, DataError
from medflare.core.origin import DRAFT
from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.images import decoding
from medflare.tasks.fhir import diagnostic_report, resource_id, write_ndjson
from medflare.tasks.reports.drafting import ReportDraft

DRAFTS = "drafts.ndjson"
SUFFIXES = {"txt": ".txt", "dicom-sr": ".sr.dcm"}
"""Format -> ending of the file that it has of each image."""
FORMATS = ("txt", "fhir", "dicom-sr")
NEEDED = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
"""Identifiers of an image without which a structured report cannot refer to it."""
PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("AccessionNumber", "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName")
SERIES_NUMBER = 9001
LONGEST_TITLE = 64
"""Characters of a DICOM long string."""


def files_of(names: Iterable[str], format: str) -> list[str]:
    """Return the names of the files that hold the drafts of some images."""
    return [DRAFTS] if format == "fhir" else [f"{name}{SUFFIXES[format]}" for name in names]


def write_text(draft: ReportDraft, folder: Path) -> Path:
    """Write a draft as `<name>.txt`; a text never holds identifiers of the header."""
    path = folder / f"{draft.name}{SUFFIXES['txt']}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draft.as_text(), encoding="utf-8")
    return path


def write_fhir(drafts: Sequence[ReportDraft], folder: Path, identifiers: bool) -> Path:
    """Write drafts as one NDJSON file of DiagnosticReports, status preliminary.

    Args:
        identifiers: whether study UID and patient number of a DICOM header go with it.
    """
    resources = []
    for number, draft in enumerate(drafts, start=1):
        header = _header(draft.image) if identifiers else {}
        resources.append(
            diagnostic_report(
                resource_id(f"draft-{number}"),
                draft.report,
                draft.findings,
                draft.origin,
                draft.warnings,
                study=str(header.get("StudyInstanceUID", "") or ""),
                patient=str(header.get("PatientID", "") or ""),
            )
        )
    return write_ndjson(folder / DRAFTS, resources)


def write_structured_report(draft: ReportDraft, folder: Path, identifiers: bool) -> Path:
    """Write a draft as a DICOM Enhanced SR, partial, unverified and preliminary: `<name>.sr.dcm`.

    Args:
        identifiers: whether the report keeps the patient's and the study's identifiers, and so lies in the
            study of its image. Without, it refers to nothing and nobody.

    Raises:
        ConfigError: highdicom is not installed.
        DataError: the image is no DICOM file, or has no identifiers to refer to.
    """
    try:
        from highdicom.sr import EnhancedSR
    except ImportError:
        raise ConfigError(
            "DICOM structured reports need highdicom, which is missing: pip install 'medflare[dicom-sr]'."
        ) from None
    from pydicom.uid import generate_uid

    document = EnhancedSR(
        evidence=[_evidence(draft.image, identifiers)],
        content=_content(draft),
        series_instance_uid=generate_uid(),
        series_number=SERIES_NUMBER,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="medflare",
        is_complete=False,
        is_final=False,
        is_verified=False,
        record_evidence=identifiers,
        series_description=DRAFT[:LONGEST_TITLE],
    )
    path = folder / f"{draft.name}{SUFFIXES['dicom-sr']}"
    path.parent.mkdir(parents=True, exist_ok=True)
    document.save_as(path)
    return path


def _content(draft: ReportDraft) -> Any:
    """Return the tree of the report: notice, model, findings, warnings."""
    from highdicom.sr import CodedConcept, ContainerContentItem, ContentSequence, TextContentItem

    def text(code: str, meaning: str, value: str) -> Any:
        concept = CodedConcept(code, "DCM", meaning)
        return TextContentItem(name=concept, value=value, relationship_type="CONTAINS")

    root = ContainerContentItem(name=CodedConcept("18748-4", "LN", "Diagnostic Imaging Report"))
    root.ContentSequence = ContentSequence(
        [
            text("121106", "Comment", f"{DRAFT} {draft.origin.words}"),
            text("121071", "Finding", draft.report),
            *(text("121106", "Comment", warning) for warning in draft.warnings),
        ]
    )
    return root


def _header(path: Path) -> Any:
    """Return the DICOM header of a file; an empty one of a picture."""
    from pydicom import dcmread
    from pydicom.dataset import Dataset

    if path.name.lower().endswith((*PICTURES, *VOLUMES)):
        return Dataset()
    with decoding(path):
        return dcmread(path, stop_before_pixels=True)


def _evidence(path: Path, identifiers: bool) -> Any:
    """Return what a structured report may know of its image."""
    from pydicom.dataset import Dataset
    from pydicom.uid import generate_uid

    header, evidence = _header(path), Dataset()
    if missing := [name for name in NEEDED if not header.get(name)]:
        raise DataError(
            f"{path}: has no {', '.join(missing)}. A structured report refers to a DICOM image; write "
            "pictures as --format txt or fhir."
        )
    for name in NEEDED:
        # a new number for each: nothing of the report leads back to the study
        kept = identifiers or name == "SOPClassUID"
        setattr(evidence, name, header[name].value if kept else generate_uid())
    for name in (*PATIENT, *STUDY):
        setattr(evidence, name, header.get(name, "") if identifiers else "")
    return evidence
