# SPDX-License-Identifier: Apache-2.0
"""Data sets in the layouts and under the file names of their downloads, of any size; picture files are empty.

`python tests/unit/benchmark/benchmark_folders.py FOLDER` writes MIMIC-CXR's lists at their full size (377,110
images) with a report for each study: time and memory of `medflare benchmark fl-mrg` are measured on it.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

import numpy as np

SENTENCES = (
    "The heart is mildly enlarged.",
    "There is a small left pleural effusion.",
    "No pneumothorax is seen.",
    "Lungs are clear without focal consolidation.",
    "There is mild pulmonary edema.",
    "Bibasilar atelectasis is present.",
    "A right internal jugular line ends in the lower superior vena cava.",
    "Opacity at the right base is concerning for pneumonia.",
    "There is an old fracture of the left clavicle.",
    "The mediastinal contours are within normal limits.",
)


def findings(rng: np.random.Generator, taste: int) -> str:
    """Return some sentences; a patient's taste makes some of them likely."""
    weights = np.ones(len(SENTENCES))
    weights[[taste % len(SENTENCES), (taste * 3 + 1) % len(SENTENCES)]] = 8
    count = int(rng.integers(2, 6))
    chosen = rng.choice(len(SENTENCES), count, replace=False, p=weights / weights.sum())
    return " ".join(SENTENCES[i] for i in chosen)


def write_mimic(
    root: Path,
    patients: int,
    studies: float = 3.5,
    seed: int = 0,
    pictures: bool = True,
    most: int | None = None,
) -> Path:
    """Write lists, reports and, where wanted, empty picture files; the version of 2.0.0.

    Args:
        studies: mean of a patient. most: images in all; further patients are left out.
    """
    rng = np.random.default_rng(seed)
    split_rows, metadata_rows, total = [], [], 0
    for number in range(patients):
        if most is not None and total >= most:
            break
        subject = str(10_000_032 + number)
        split = "test" if number % 25 == 0 else "validate" if number % 25 == 1 else "train"
        for visit in range(1 + int(rng.poisson(studies - 1))):
            study = str(50_000_000 + number * 40 + visit)
            folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            text = f"   FINAL REPORT\n FINDINGS:  {findings(rng, number)}\n\n IMPRESSION:  As above.\n"
            if rng.random() < 0.1:
                text = " IMPRESSION:  No acute process.\n"
            folder.with_suffix(".txt").write_text(text)
            for picture in range(1 + int(rng.random() < 0.65)):
                if most is not None and total >= most:
                    break
                dicom = f"{number:08x}-{visit:08x}-{picture:08x}-0a0b0c0d-11223344"
                if pictures:
                    folder.mkdir(exist_ok=True)
                    (folder / f"{dicom}.jpg").touch()
                split_rows.append((dicom, study, subject, split))
                metadata_rows.append((dicom, subject, study, "PA" if not picture else "LATERAL",
                                      21_800_000 + 101 + visit, f"{100000 + visit}.5"))  # fmt: skip
                total += 1
    _write(root / "mimic-cxr-2.0.0-split.csv.gz", ("dicom_id", "study_id", "subject_id", "split"), split_rows)
    columns = ("dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime")
    _write(root / "mimic-cxr-2.0.0-metadata.csv.gz", columns, metadata_rows)
    return root


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def write_iu(root: Path, train: int = 20, val: int = 10, test: int = 5) -> Path:
    """Write R2Gen's annotation.json with that many studies of two images each."""
    rng = np.random.default_rng(1)
    document: dict[str, list[dict[str, object]]] = {}
    number = 0
    for split, count in (("train", train), ("val", val), ("test", test)):
        document[split] = []
        for _ in range(count):
            name = f"CXR{number}_IM-{number:04d}"
            images = [f"{name}/{picture}.png" for picture in (0, 1)]
            (root / "images" / name).mkdir(parents=True)
            for image in images:
                (root / "images" / image).touch()
            entry = {"id": name, "report": findings(rng, number), "image_path": images, "split": split}
            document[split].append(entry)
            number += 1
    (root / "annotation.json").write_text(json.dumps(document))
    return root


def write_chexpert_plus(root: Path, patients: int) -> Path:
    """Write df_chexpert_plus_240401.csv and empty picture files."""
    rng = np.random.default_rng(2)
    root.mkdir(parents=True)
    columns = ("path_to_image", "frontal_lateral", "deid_patient_id", "patient_report_date_order", "split",
               "section_findings", "section_impression", "age", "sex")  # fmt: skip
    with (root / "df_chexpert_plus_240401.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number in range(patients):
            split, person = ("valid" if number % 20 == 0 else "train"), f"patient{number:05d}"
            for study in range(1, 3):
                text = findings(rng, number + 5)
                for view, name in (("Frontal", "view1_frontal"), ("Lateral", "view2_lateral")):
                    path = f"{split}/{person}/study{study}/{name}.jpg"
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).touch()
                    writer.writerow((path, view, person, study, split, text, "As above.", 61, "Male"))
    return root


if __name__ == "__main__":
    write_mimic(Path(sys.argv[1]), 100_000, most=377_110)
