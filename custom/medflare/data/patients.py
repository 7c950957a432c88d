# SPDX-License-Identifier: Apache-2.0
"""Whether a record names its patient."""

from __future__ import annotations

import re

_SOURCE = re.compile(r"^\d+/")
"""Prefix that `pool` puts before ids."""


def named_patient(patient_id: str, record_id: str) -> str | None:
    """Return the patient of a record; None where it names nobody.

    Readers put a record's own id in the place of a patient who is not named.
    """
    if not patient_id or _SOURCE.sub("", patient_id) == _SOURCE.sub("", record_id):
        return None
    return patient_id
