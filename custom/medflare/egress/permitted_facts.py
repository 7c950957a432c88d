# SPDX-License-Identifier: Apache-2.0
"""Filter of a reply's facts: nothing of too few examples, no other metric, and rounded numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from medflare.egress.policy import Policy, matches
from medflare.wire.first_values import FACT as FIRST_VALUES
from medflare.wire.first_values import NORM

COUNTED = "counted"
"""Fact of an evaluation that stays here: over how many examples it really was."""
SPENT = "spent"
"""Fact of a private update that stays here: what the run and all jobs have spent, for the site's ledger."""
DIGITS, DIGITS_SEALED = 6, 4
"""Significant digits of a metric that leaves, and of one that leaves beside sealed updates.

The difference of two losses can be the loss of one patient. Rounding alone does not hide that; together with
one evaluation in a round it makes it coarse."""


COUNTS = frozenset({"steps", "tokens", "words"})
"""Metrics of training that count, like `examples`, and leave as they are where they are whole.

`tokens` can be the weight of an update. A site that encrypts multiplies by it before it sends, and the server
divides by the sum of what it is told, so both must have the same number. Others are not left out of the
rounding for being whole: every float32 above 2**24 is, and a server can make losses as large.
"""


FOLDER_MARK = frozenset("/\\")
"""Characters of a path: why a metric was skipped may name a folder of the site."""
REASON_STAYS = "skipped: the reason names a folder of the site and is in its log"

log = logging.getLogger(__name__)


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return a float with so many significant digits; integers, and what is not finite, as they are."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return float(f"{value:.{digits}g}")


def permitted_facts(
    policy: Policy, facts: Mapping[str, Any], digits: int = DIGITS
) -> tuple[dict[str, Any], int]:
    """Return (facts without the metrics that stay here, the number of those).

    Args:
        digits: significant digits of the metrics that leave.

    Raises:
        PolicyError: something is about too few examples.
    """
    out, withheld = dict(facts), 0
    if "sketch" in facts:  # also of no text: its triples may still be of this site's patients
        policy.counted("a sketch", facts.get("examples", 0))
    elif "elements" in facts:
        policy.counted("the size of a knowledge graph", facts["examples"])
    elif "partner" in facts:  # checked again: a server may go on after the size was refused
        policy.counted("a comparison of knowledge graphs", facts["examples"])
    elif facts.get("examples"):
        policy.counted("an update", facts["examples"])
    for split, count in facts.get("describe", {}).get("examples", {}).items():
        if count:
            policy.counted(f"the split '{split}'", count)
    if FIRST_VALUES in facts:
        out[FIRST_VALUES] = {
            name: {**entry, NORM: rounded(entry[NORM])}
            for name, entry in facts[FIRST_VALUES].items()
            if matches(name, policy.rules.tensors)
        }
    if COUNTED in facts:
        counted = out.pop(COUNTED)
        if facts["metrics"]:
            policy.counted("an evaluation", counted)
    if "metrics" in facts:
        kept = policy.metrics(facts["metrics"])
        withheld += len(facts["metrics"]) - len(kept)
        out["metrics"] = {name: _leaving(name, value, digits) for name, value in kept.items()}
    if "evaluations" in facts:
        out["evaluations"] = []
        for item in facts["evaluations"]:
            policy.counted("an evaluation", item["studies"])
            kept = policy.metrics(item["metrics"])
            withheld += len(item["metrics"]) - len(kept)
            estimates = {
                name: {part: rounded(value, digits) for part, value in estimate.items()}
                for name, estimate in kept.items()
            }
            reasons = {
                name: text if not FOLDER_MARK & set(text) else REASON_STAYS
                for name, text in policy.metrics(item.get("skipped_metrics", {})).items()
            }
            if staying := [name for name, text in reasons.items() if text == REASON_STAYS]:
                skipped = item["skipped_metrics"]
                log.warning("; ".join(f"{name} {skipped[name]}" for name in staying))
            out["evaluations"].append({**item, "metrics": estimates, "skipped_metrics": reasons})
    return out, withheld


def _leaving(name: str, value: Any, digits: int) -> Any:
    if name in COUNTS and isinstance(value, float) and value.is_integer():
        return value
    return rounded(value, digits)
