# SPDX-License-Identifier: Apache-2.0
"""Shared parts of readers: their result, report sections, label conventions, numbers and sex."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.records import RecordLists


@dataclass(slots=True, kw_only=True)
class SourceRecords(RecordLists):
    """Result of a reader, before cleaning, labelling and splitting.

    Attributes:
        studies: `report` as in the source (may be empty), `split` "" where the source has none.
        has_split, has_labels: whether the source brings a split and 14 codes of its own.
        places: record id -> the file (and line) where it stands, for messages.
        left_out: kind of annotation line -> how many; lines that a format has and nobody here uses.
        too_masked: summaries left out for `most_masks`.
    """

    has_split: bool = False
    has_labels: bool = False
    places: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    too_masked: int = 0


def parse_number(value: Any) -> float | None:
    """Return `value` as a float, None where it is empty or no number; "45Y" style ages are read."""
    if value is None or isinstance(value, bool):
        return None
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*(?:[yY].*)?", str(value))
    return float(match[1]) if match else None


_SEX = {
    **dict.fromkeys(("f", "female", "woman", "girl", "w", "weiblich", "frau", "femme", "femenino"), "F"),
    **dict.fromkeys(("m", "male", "man", "boy", "männlich", "mann", "homme", "masculin", "masculino"), "M"),
}


def parse_sex(value: Any) -> str | None:
    """Return "F", "M", or None for what is neither: "missing" begins with an m, too."""
    return _SEX.get(str(value or "").strip().lower())


_CHEXPERT = {"1": Code.POSITIVE, "0": Code.NEGATIVE, "-1": Code.UNCERTAIN, "": Code.BLANK}


def chexpert_codes(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return 14 codes from CheXpert's columns (1 positive, 0 negative, -1 uncertain), None without them."""
    lowered = {str(key).strip().lower(): value for key, value in row.items()}
    codes = []
    for condition in CONDITIONS:
        value = lowered.get(condition, "missing")
        text = "" if value is None or value != value else str(value).strip().removesuffix(".0")
        if text not in _CHEXPERT:
            return None
        codes.append(int(_CHEXPERT[text]))
    if codes[-1] != Code.POSITIVE:
        codes[-1] = int(Code.BLANK)
    return tuple(codes)


def choose_sections(findings: str, impression: str, sections: str) -> str:
    """Return the part of a sectioned report that `CohortConfig.sections` asks for, "" if it is missing."""
    if sections == "findings":
        return findings
    if sections == "impression":
        return impression
    if sections == "findings_or_impression":
        return findings or impression
    return " ".join(part for part in (findings, impression) if part)


_NEXT_HEADING = r"(?=^[ \t]*[A-Z][A-Z /,&()'-]{2,60}:|\Z)"


def section(text: str, heading: str) -> str:
    """Return the text under one heading in capitals, joined to one line; "" where the heading is absent.

    Headings such as "FINDINGS AND IMPRESSION:" and "FINAL REPORT ... FINDINGS:" are found too.
    """
    pattern = rf"(?ms)^[ \t]*(?:[A-Z /,&]*\b)?{heading}S?\b[A-Z /,&]*:(.*?){_NEXT_HEADING}"
    return " ".join(" ".join(part.split()) for part in re.findall(pattern, text)).strip()
