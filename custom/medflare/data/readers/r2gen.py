# SPDX-License-Identifier: Apache-2.0
"""R2Gen's annotation.json: {"train"|"val"|"test": [{id, report, image_path: [..]}]} beside a folder images/.

IU X-ray has two images in each entry and ids such as CXR2384_IM-0942, one patient each; MIMIC-CXR has one
image in each entry, with subject_id and study_id beside it (Chen et al., EMNLP 2020). Entries of one study
become one Study with all their images; with `study_images: all` the samples are the entries again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from medflare.core.errors import DataError
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import find_file, select_rows
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig

FILES = ("annotation.json", "*/annotation.json", "*annotation*.json")


def read(config: CohortConfig) -> SourceRecords:
    """Read annotation.json in `config.root`; images lie in `images/` beside it, or directly beside it."""
    path = find_file(config.root, FILES, config.file)
    document = _document(path)
    folder = path.parent / "images" if (path.parent / "images").is_dir() else path.parent
    entries = [
        {"split": split, **entry}
        for split, listed in document.items()
        for entry in listed
        if isinstance(entry, dict)
    ]
    keys = list(dict.fromkeys(key for entry in entries for key in entry))
    source = SourceRecords(has_split=True)
    studies: dict[str, Study] = {}
    ids: set[str] = set()
    for index, entry in enumerate(select_rows(path, keys, entries, config.select)):
        name = str(entry.get("id") or f"{path.name} entry {index + 1}")
        study = _study(folder, entry, name)
        if name in ids:
            source.skip(f"{name} ({index + 1})", "duplicated study", "the same id appeared before")
        elif study.study_id in studies:
            first = studies[study.study_id]
            studies[study.study_id] = replace(first, images=first.images + study.images)
        else:
            studies[study.study_id] = study
        ids.add(name)
    source.studies = list(studies.values())
    return source


def _document(path: Path) -> Mapping[str, list[Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not JSON: {error}. Copy the file again.") from None
    if not isinstance(document, dict) or not all(isinstance(item, list) for item in document.values()):
        raise DataError(f'{path}: expected {{"train": [...], "val": [...], "test": [...]}}.')
    return document


def _study(folder: Path, entry: Mapping[str, Any], fallback: str) -> Study:
    record = str(entry.get("study_id") or fallback)
    listed = entry.get("image_path")
    images = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
    return Study(
        study_id=record,
        patient_id=_patient(entry),
        images=tuple(folder / str(name) for name in images),
        report=str(entry.get("report") or ""),
        split=str(entry.get("split", "")),
    )


def _patient(entry: Mapping[str, Any]) -> str:
    """Return MIMIC's subject_id; for IU X-ray the CXR number before the underscore."""
    subject = entry.get("subject_id")
    return str(subject) if subject not in (None, "") else str(entry.get("id") or "").split("_")[0]
