# SPDX-License-Identifier: Apache-2.0
"""Small folders in the layout of each format: six studies of five patients."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS

REPORTS = (
    "The heart is enlarged. No pleural effusion or pneumothorax.",
    "There is a right pleural effusion. The heart size is normal.",
    "The lungs are clear. No acute disease.",
    "Bibasilar atelectasis. No pneumothorax.",
    "Possible left lower lobe pneumonia. Mild cardiomegaly.",
    "Small left apical pneumothorax. No effusion.",
)
PATIENTS = ("11", "12", "13", "14", "15", "15")
SPLITS = ("train", "train", "train", "val", "test", "test")


def corner_image(seed: int = 0, shape: tuple[int, int] = (48, 40)) -> np.ndarray:
    """(H, W) uint8, dim noise with one bright block at the top left, which no flip leaves in place."""
    image = np.random.default_rng(seed).integers(20, 60, shape, dtype=np.uint8)
    image[4:16, 3:14] = 230
    return image


def write_png(path: Path, image: np.ndarray) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def write_dicom(
    path: Path,
    image: np.ndarray,
    photometric: str = "MONOCHROME2",
    slope: float | None = None,
    **elements: Any,
) -> Path:
    """A 12-bit DICOM; MONOCHROME1 is written as scanners do, with the values inverted."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    stored = image.astype(np.uint16) * 16
    stored = 4095 - stored if photometric == "MONOCHROME1" else stored
    dataset.Rows, dataset.Columns = image.shape
    dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PhotometricInterpretation = photometric
    if slope is not None:
        dataset.RescaleSlope, dataset.RescaleIntercept = slope, -100
    for keyword, value in elements.items():
        setattr(dataset, keyword, value)
    dataset.PixelData = stored.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_nifti(path: Path, volume: np.ndarray, affine: np.ndarray | None) -> Path:
    import nibabel

    nibabel.save(nibabel.Nifti1Image(volume, affine), path)
    return path


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    listed = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(listed[0]))
    table.writeheader()
    table.writerows(listed)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def manifest_rows() -> list[dict[str, Any]]:
    return [
        {
            "study_id": f"s{index}",
            "patient_id": PATIENTS[index],
            "image": [f"images/s{index}.png"],
            "report": REPORTS[index],
            "split": SPLITS[index],
            "age": 40 + index,
            "sex": "F" if index % 2 else "M",
            "day": float(index),
            "view": "PA",
        }
        for index in range(6)
    ]


def manifest(root: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    for index in range(6):
        write_png(root / "images" / f"s{index}.png", corner_image(index))
    write_jsonl(root / "manifest.jsonl", manifest_rows() if rows is None else rows)
    return root


def manifest_csv(root: Path) -> Path:
    for index in range(6):
        write_png(root / "images" / f"s{index}.png", corner_image(index))
    rows = [{**row, "image": ";".join(row["image"])} for row in manifest_rows()]
    write_csv(root / "manifest.csv", rows)
    return root


def r2gen_iu(root: Path) -> Path:
    document: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for index, report in enumerate(REPORTS[:5]):
        name = f"CXR{index}_IM-{1000 + index}"
        paths = [f"{name}/{view}.png" for view in (0, 1)]
        for path in paths:
            write_png(root / "images" / path, corner_image(index))
        document[SPLITS[index]].append(
            {"id": name, "report": report, "image_path": paths, "split": SPLITS[index]}
        )
    (root / "annotation.json").write_text(json.dumps(document), encoding="utf-8")
    return root


def r2gen_mimic(root: Path) -> Path:
    """One entry per image; study 105 has two entries."""
    document: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for index in (0, 1, 2, 3, 4, 5, 5):
        name = f"d{index}-{sum(map(len, document.values()))}"
        path = f"p1/p{PATIENTS[index]}/s10{index}/{name}.jpg"
        write_png(root / "images" / path, corner_image(index))
        entry = {"id": name, "study_id": 100 + index, "subject_id": int(PATIENTS[index])}
        document[SPLITS[index]].append({**entry, "report": REPORTS[index], "image_path": [path]})
    (root / "annotation.json").write_text(json.dumps(document), encoding="utf-8")
    return root


def mimic_cxr(root: Path) -> Path:
    split, metadata, labels = [], [], []
    for index, report in enumerate(REPORTS):
        subject, study, dicom = f"100000{PATIENTS[index]}", f"5000000{index}", f"dicom{index}"
        below = Path("files") / f"p{subject[:2]}" / f"p{subject}"
        write_png(root / below / f"s{study}" / f"{dicom}.jpg", corner_image(index))
        text = (
            "                                 FINAL REPORT\n EXAMINATION:  CHEST (PA AND LAT)\n\n"
            f" INDICATION:  Cough.\n\n FINDINGS: \n \n {report}\n\n IMPRESSION: \n \n Impression {index}.\n"
        )
        (root / below / f"s{study}.txt").write_text(text, encoding="utf-8")
        keys = {"dicom_id": dicom, "study_id": study, "subject_id": subject}
        split.append({**keys, "split": "validate" if SPLITS[index] == "val" else SPLITS[index]})
        metadata.append(
            {**keys, "ViewPosition": "PA" if index else "AP", "StudyDate": f"218005{10 + index}.0"}
        )
        values = {condition.title(): "" for condition in CONDITIONS}
        values["Cardiomegaly"], values["Pneumonia"], values["Edema"] = "1.0", "-1.0", "0.0"
        labels.append({"subject_id": subject, "study_id": study, **values})
    write_csv(root / "mimic-cxr-2.0.0-split.csv.gz", split)
    write_csv(root / "mimic-cxr-2.0.0-metadata.csv", metadata)
    write_csv(root / "mimic-cxr-2.0.0-chexpert.csv.gz", labels)
    return root


def iu_csv(root: Path) -> Path:
    reports, pictures = [], []
    for index, report in enumerate(REPORTS):
        findings = "" if index == 5 else report
        reports.append({"uid": index, "MeSH": "normal", "findings": findings, "impression": report})
        for view in ("Frontal", "Lateral"):
            name = f"{index}_IM-{view}.dcm.png"
            pictures.append({"uid": index, "filename": name, "projection": view})
            write_png(root / "images" / "images_normalized" / name, corner_image(index))
    write_csv(root / "indiana_reports.csv", reports)
    write_csv(root / "indiana_projections.csv", pictures)
    return root


def iu_xml(root: Path) -> Path:
    for index, report in enumerate(REPORTS):
        write_png(root / "NLMCXR_png" / f"CXR{index}_IM-1.png", corner_image(index))
        text = (
            f'<?xml version="1.0"?><eCitation><uId id="CXR{index}"/><MedlineCitation><Article><Abstract>'
            f'<AbstractText Label="INDICATION">Cough</AbstractText>'
            f'<AbstractText Label="FINDINGS">{report}</AbstractText>'
            f'<AbstractText Label="IMPRESSION">None.</AbstractText></Abstract></Article></MedlineCitation>'
            f'<parentImage id="CXR{index}_IM-1"><caption/></parentImage></eCitation>'
        )
        path = root / "ecgen-radiology" / f"{index}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def chexpert_plus(root: Path) -> Path:
    rows = []
    for index, report in enumerate(REPORTS):
        name = f"train/patient{PATIENTS[index]}/study{index}/view1_frontal.jpg"
        write_png(root / "PNG" / Path(name).with_suffix(".png"), corner_image(index))
        rows.append(
            {
                "path_to_image": name,
                "section_findings": "" if index == 2 else report,
                "section_impression": report,
                "deid_patient_id": f"patient{PATIENTS[index]}",
                "patient_report_date_order": index + 1,
                "age": 60 + index,
                "sex": "Female",
                "frontal_lateral": "Frontal",
                "split": "valid" if SPLITS[index] == "val" else "train",
            }
        )
    write_csv(root / "df_chexpert_plus_240401.csv", rows)
    return root


def write_structured_report(path: Path, findings: str, **elements: Any) -> Path:
    """A basic text SR: a container with the findings and the impression as texts."""
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.sequence import Sequence
    from pydicom.uid import BasicTextSRStorage, ExplicitVRLittleEndian, generate_uid

    def item(name: str, text: str) -> Dataset:
        concept, child = Dataset(), Dataset()
        concept.CodeValue, concept.CodingSchemeDesignator, concept.CodeMeaning = "1", "DCM", name
        child.RelationshipType, child.ValueType, child.TextValue = "CONTAINS", "TEXT", text
        child.ConceptNameCodeSequence = Sequence([concept])
        return child

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, BasicTextSRStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Modality, dataset.ValueType = "SR", "CONTAINER"
    for keyword, value in elements.items():
        setattr(dataset, keyword, value)
    dataset.ContentSequence = Sequence([item("Findings", findings), item("Impression", "See above.")])
    dataset.save_as(path, enforce_file_format=True)
    return path


def dicom_reports(root: Path) -> Path:
    """A PACS export: six studies whose reports are two text files, two SRs and two rows of reports.csv."""
    rows = []
    for index, report in enumerate(REPORTS):
        study = {
            "StudyInstanceUID": f"1.2.{index}",
            "PatientID": PATIENTS[index],
            "AccessionNumber": f"A{index}",
            "StudyDate": f"2020010{index + 1}",
            "StudyTime": "120000",
        }
        shown = {"Modality": "DX", "BodyPartExamined": "CHEST", "ViewPosition": "PA", "PatientAge": "045Y"}
        write_dicom(root / f"s{index}" / "IM0", corner_image(index), **study, **shown)
        if index < 2:
            (root / f"s{index}" / f"A{index}.txt").write_text(f"FINDINGS: {report}\nIMPRESSION: None.\n")
        elif index < 4:
            write_structured_report(root / f"s{index}" / "SR1", report, **study)
        else:
            rows.append({"accession": f"A{index}", "report": report})
    write_dicom(root / "s0" / "CT0", corner_image(), StudyInstanceUID="1.2.0", Modality="CT")
    write_csv(root / "reports.csv", rows)
    return root
