# SPDX-License-Identifier: Apache-2.0
"""Check that a DICOM header is one of a chest radiograph; pictures without a header pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.data.image_files import PICTURES, VOLUMES
from medflare.data.images import DecodeError, decoding

RADIOGRAPHS = frozenset({"CR", "DX", "RG", "PX", "DR"})
"""Modality (0008,0060) of projection radiographs; DR is no defined term, and some detectors write it."""
UNSAID = frozenset({"", "OT", "SC"})
"""Modalities that say nothing of what is in the picture: other, secondary capture."""
CHEST = re.compile(r"chest|thora|lung|pulm|torax|thorax", re.IGNORECASE)
FRONTAL = frozenset({"PA", "AP"})
TAGS = ["Modality", "BodyPartExamined", "ViewPosition"]


@dataclass(frozen=True, slots=True)
class HeaderProblem:
    """Why a header cannot be that of a chest radiograph; `reason` is short, to count by."""

    reason: str
    detail: str


def header_problem(header: Any) -> HeaderProblem | None:
    """Return why a DICOM header is that of something else, None where it may be a radiograph of a chest.

    Args:
        header: a pydicom Dataset with at least TAGS read.
    """
    modality, part, _ = _values(header)
    if modality.upper() not in RADIOGRAPHS | UNSAID:
        expected = ", ".join(sorted(RADIOGRAPHS))
        return HeaderProblem(
            "not a radiograph", f"its modality is {modality[:16]}; expected one of {expected}"
        )
    if part and not CHEST.search(part):
        return HeaderProblem("not a chest", f"the body part examined is {part[:32]}; expected CHEST")
    return None


def _values(header: Any) -> tuple[str, str, str]:
    modality, part, view = (str(header.get(tag, "") or "").strip() for tag in TAGS)
    return modality, part, view


def chest_radiograph_warnings(path: Path) -> list[str]:
    """Return what a file's header leaves in doubt about its being a frontal radiograph of a chest.

    Raises:
        DecodeError: with reason `not a radiograph` or `not a chest` where the header says so, `missing image`
            or `corrupt image` where it cannot be read.
    """
    if path.name.lower().endswith((*PICTURES, *VOLUMES)):
        return ["a picture without a DICOM header: that it shows a chest is taken on trust"]
    import pydicom

    with decoding(path):
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
    if (problem := header_problem(header)) is not None:
        raise DecodeError(problem.reason, f"{path}: {problem.detail}")
    modality, part, view = _values(header)
    warnings = []
    if modality.upper() in UNSAID:
        warnings.append(f"modality {modality or 'not given'}: that it is a radiograph is taken on trust")
    if not part:
        warnings.append("no body part given: that it shows a chest is taken on trust")
    if view and view.upper() not in FRONTAL:
        warnings.append(f"view {view[:16]}: a model of frontal radiographs cannot be expected to read it")
    return warnings
