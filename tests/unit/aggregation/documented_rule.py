# SPDX-License-Identifier: Apache-2.0
"""The rule that docs/how-to/add-a-rule.md shows, executed from the document itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from medflare.aggregation.base import AggregationRule

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-rule.md"


def documented_code() -> str:
    """The one Python block of the document that is a module."""
    blocks = re.findall(r"```python\n(# SPDX.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1, f"{DOCUMENT.name} has {len(blocks)} whole modules, expected one"
    return str(blocks[0])


def documented_rule(**settings: Any) -> AggregationRule:
    """The rule with these settings."""
    space: dict[str, Any] = {"__name__": "documented"}
    exec(compile(documented_code(), str(DOCUMENT), "exec"), space)
    rule = space["FairMean"](**settings)
    assert isinstance(rule, AggregationRule)
    return rule
