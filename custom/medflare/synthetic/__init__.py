# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals: deterministic chest radiographs, reports in house styles, patients over time."""

from medflare.synthetic.findings import ChestFinding
from medflare.synthetic.hospitals import (
    SyntheticStudy,
    contact_sheet,
    generate,
    generate_reports,
    write_hospital,
)
from medflare.synthetic.profiles import (
    DEMO_HOSPITALS,
    UNSEEN_HOSPITAL,
    HospitalProfile,
    pretraining_hospitals,
)
from medflare.synthetic.scanner import Scanner
from medflare.synthetic.styles.house import STYLES, HouseStyle

__all__ = [
    "DEMO_HOSPITALS",
    "STYLES",
    "UNSEEN_HOSPITAL",
    "ChestFinding",
    "HospitalProfile",
    "HouseStyle",
    "Scanner",
    "SyntheticStudy",
    "contact_sheet",
    "generate",
    "generate_reports",
    "pretraining_hospitals",
    "write_hospital",
]
