# SPDX-License-Identifier: Apache-2.0
"""docs/reference/errors.md explains every number a site can answer with, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from medflare.egress.failures import FailureCode

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"


def test_every_number_has_its_row_and_what_to_do() -> None:
    rows = re.findall(
        r"^\| \*\*E(\d+)\*\* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert {int(number) for number, *_ in rows} == {int(code) for code in FailureCode}
    assert all(len(advice.strip()) > 10 for *_, advice in rows)
