# SPDX-License-Identifier: Apache-2.0
"""Whether a DICOM file says that it is a radiograph of a chest; pictures without a header say nothing."""

from __future__ import annotations

import re
from pathlib import Path

from medflare.data.images import PICTURES, VOLUMES, DecodeError, decoding

RADIOGRAPHS = frozenset({"CR", "DX", "RG", "PX", "DR"})
"""Modality (0008,0060) of projection radiographs; DR is no defined term, and some detectors write it."""
UNSAID = frozenset({"", "OT", "SC"})
"""Modalities that say nothing of what is in the picture: other, secondary capture."""
CHEST = re.compile(r"chest|thora|lung|pulm|torax|thorax", re.IGNORECASE)
FRONTAL = frozenset({"PA", "AP"})
TAGS = ["Modality", "BodyPartExamined", "ViewPosition"]


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
    modality, part, view = (str(header.get(tag, "") or "").strip() for tag in TAGS)
    if modality.upper() not in RADIOGRAPHS | UNSAID:
        raise DecodeError(
            "not a radiograph",
            f"{path}: its modality is {modality[:16]}; expected one of {', '.join(sorted(RADIOGRAPHS))}",
        )
    if part and not CHEST.search(part):
        raise DecodeError("not a chest", f"{path}: the body part examined is {part[:32]}; expected CHEST")
    warnings = []
    if modality.upper() in UNSAID:
        warnings.append(f"modality {modality or 'not given'}: that it is a radiograph is taken on trust")
    if not part:
        warnings.append("no body part given: that it shows a chest is taken on trust")
    if view and view.upper() not in FRONTAL:
        warnings.append(f"view {view[:16]}: a model of frontal radiographs cannot be expected to read it")
    return warnings
