# SPDX-License-Identifier: Apache-2.0
"""Words of a draft for each word of its reference: 1 is as long, 0.5 half as long."""

from __future__ import annotations

from collections.abc import Sequence


def words_ratio(references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
    """Return one number for each report; medflare reports their mean with an interval."""
    pairs = zip(references, hypotheses, strict=True)
    return [len(hypothesis.split()) / max(len(reference.split()), 1) for reference, hypothesis in pairs]
