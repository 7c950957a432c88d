# SPDX-License-Identifier: Apache-2.0
"""The synthetic hospitals in the layouts of MIMIC-CXR-JPG and of R2Gen's IU X-Ray, pictures included.

`python tests/unit/benchmark/synthetic_downloads.py FOLDER` writes FOLDER/mimic-cxr-jpg and FOLDER/iu_xray, on
which `medflare benchmark fl-mrg` and `benchmark run` go through as they do on the downloads.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.hospitals import SyntheticStudy, generate

SPLITS = {"train": "train", "val": "validate", "test": "test"}
"""Our name of a split -> MIMIC-CXR's."""


def _save(study: SyntheticStudy, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert study.image is not None
    Image.fromarray((np.asarray(study.image) * 255).astype(np.uint8)).save(path)


def _studies(hospitals: Iterable[int], patients: int, size: int) -> Iterable[tuple[int, SyntheticStudy]]:
    """Yield (number of the patient over all hospitals, study)."""
    for hospital in hospitals:
        for study in generate(DEMO_HOSPITALS[hospital], patients, visits=(1, 2), size=size):
            yield hospital * patients + int(study.patient_id.rsplit("-p", 1)[1]), study


def write_synthetic_mimic(root: Path, patients: int, size: int = 64) -> Path:
    """Write two hospitals as one MIMIC-CXR-JPG 2.0.0 with its reports."""
    split_rows, metadata_rows = [], []
    for number, study in _studies((0, 1), patients, size):
        subject = str(10_000_032 + number)
        visit = int(study.study_id.rsplit("-v", 1)[1])
        name = str(50_000_000 + number * 40 + visit)
        folder = root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{name}"
        dicom = f"{number:08x}-{visit:08x}-00000000-0a0b0c0d-11223344"
        _save(study, folder / f"{dicom}.jpg")
        text = f"   FINAL REPORT\n FINDINGS:  {study.report}\n\n IMPRESSION:  As above.\n"
        folder.with_suffix(".txt").write_text(text)
        split_rows.append((dicom, name, subject, SPLITS[study.split]))
        metadata_rows.append((dicom, subject, name, "PA", 21_800_101 + visit, "100000.5"))
    for kind, columns, rows in (
        ("split", ("dicom_id", "study_id", "subject_id", "split"), split_rows),
        (
            "metadata",
            ("dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime"),
            metadata_rows,
        ),
    ):
        with gzip.open(root / f"mimic-cxr-2.0.0-{kind}.csv.gz", "wt", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    return root


def write_synthetic_iu(root: Path, patients: int, size: int = 64) -> Path:
    """Write the third hospital as R2Gen's IU X-Ray."""
    document: dict[str, list[dict[str, object]]] = {"train": [], "val": [], "test": []}
    for number, study in _studies((2,), patients, size):
        name = f"CXR{number}_IM-{len(document['train']):04d}-{study.study_id.rsplit('-v', 1)[1]}"
        _save(study, root / "images" / name / "0.png")
        row = {"id": name, "report": study.report, "image_path": [f"{name}/0.png"], "split": study.split}
        document[study.split].append(row)
    (root / "annotation.json").write_text(json.dumps(document))
    return root


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_synthetic_mimic(target / "mimic-cxr-jpg", 120, 128)
    write_synthetic_iu(target / "iu_xray", 40, 128)
