# SPDX-License-Identifier: Apache-2.0
"""Optional scorers that need weights of their own, given as local folders; nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medflare.evaluation.statistics import Statistic


def optional_statistics(
    references: Sequence[str], hypotheses: Sequence[str], folders: Mapping[str, str | Path]
) -> tuple[dict[str, Statistic], dict[str, str]]:
    """Statistics of the scorers that can run, and for every other one a line that says why not."""
    return {}, {}
