# SPDX-License-Identifier: Apache-2.0
"""CheXpert's 14 conditions and what a report says of each: the vocabulary of chest X-ray labels."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Statement of a report about a condition; CheXbert's class codes."""

    BLANK = 0
    POSITIVE = 1
    NEGATIVE = 2
    UNCERTAIN = 3


CONDITIONS: tuple[str, ...] = (
    "enlarged cardiomediastinum",
    "cardiomegaly",
    "lung opacity",
    "lung lesion",
    "edema",
    "consolidation",
    "pneumonia",
    "atelectasis",
    "pneumothorax",
    "pleural effusion",
    "pleural other",
    "fracture",
    "support devices",
    "no finding",
)
"""CheXpert's 14 conditions in CheXbert's order; "no finding" only takes BLANK or POSITIVE."""
