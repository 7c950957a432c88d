# SPDX-License-Identifier: Apache-2.0
"""Rows of the local baseline: a site's score after the federated run beside that of training alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medflare.core.run_record import ComparisonRecord, Estimate, EvaluationRecord, RunRecord
from medflare.reporting.score_rows import ScoreCell, difference, score_cell

NOISE = "One run cannot tell training noise from an effect."
CAPTION = (
    "Times 100, with 95 % bootstrap intervals. Alone: the same job, rounds and steps with this site only. "
    "The difference is paired over the same records and leaves out the noise of training, so nothing is "
    "marked as better."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow:
    """One score at one place.

    Attributes:
        trained_at: the site that trained alone.
        tested_at: the site whose records were tested; role: its part in the federated run.
        federated: None where it was not computed.
        difference: paired over the records; None where it was not computed, as for too few of them.
    """

    trained_at: str
    tested_at: str
    role: str
    adapter: str
    metric: str
    federated: Estimate | None
    alone: Estimate
    difference: ComparisonRecord | None

    @property
    def place(self) -> str:
        """The site whose records were tested, and whether it took part."""
        return self.tested_at + (" (unseen)" if self.role == "unseen" else "")

    @property
    def cells(self) -> tuple[ScoreCell, ScoreCell, ScoreCell]:
        """The scores after the federated run and alone, and their difference, as tables print them."""
        gap = self.difference
        change = score_cell(None) if gap is None else difference(gap.value, gap.low, gap.high)
        return score_cell(self.federated), score_cell(self.alone), change

    def as_json(self) -> dict[str, Any]:
        """Return plain types, values as fractions."""
        estimates = {"federated": self.federated, "alone": self.alone}
        return {
            "trained_at": self.trained_at,
            "tested_at": self.tested_at,
            "role": self.role,
            "adapter": self.adapter,
            "metric": self.metric,
            **{name: item and item.model_dump() for name, item in estimates.items()},
            "difference": self.difference and self.difference.model_dump(),
        }


def baseline_rows(record: RunRecord, metrics: Sequence[str] | None = None) -> list[BaselineRow]:
    """Return the rows of all sites that trained alone, in the order of `metrics`; None for all scores."""
    federated = {place_of(item): item for item in record.evaluations}
    rows = []
    for baseline in record.alone:
        item = baseline.evaluation
        ours = federated.get(place_of(item))
        gaps = {gap.metric: gap for gap in baseline.differences}
        for metric in item.metrics if metrics is None else metrics:
            if metric in item.metrics:
                row = BaselineRow(
                    trained_at=baseline.trained_at,
                    tested_at=item.site,
                    role=item.role,
                    adapter=item.adapter,
                    metric=metric,
                    federated=None if ours is None else ours.metrics.get(metric),
                    alone=item.metrics[metric],
                    difference=gaps.get(metric),
                )
                rows.append(row)
    return rows


def place_of(item: EvaluationRecord) -> tuple[str, str, str]:
    """Return what two evaluations have in common that may be compared: site, adapter and split."""
    return item.site, item.adapter, item.split
