# SPDX-License-Identifier: Apache-2.0
"""Generated reports of every test study of a site, and the comparison of two systems on the same studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from medflare.core.conditions import CONDITIONS
from medflare.core.run_record import ComparisonRecord, RecordModel
from medflare.evaluation.label_metrics import label_statistics, other_patients_statistic
from medflare.evaluation.report_metrics import report_statistics
from medflare.evaluation.statistics import Statistic, paired_difference

WIDTH = len(CONDITIONS)


class Prediction(RecordModel):
    """One study: what the radiologist wrote, what the model wrote, and what the labeller reads in both."""

    study_id: str
    patient_id: str
    site: str
    adapter: Literal["generic", "personalised", "none"]
    reference: str
    generated: str
    gold_codes: tuple[int, ...] = Field(min_length=WIDTH, max_length=WIDTH)
    predicted_codes: tuple[int, ...] = Field(min_length=WIDTH, max_length=WIDTH)
    image: str | None = Field(default=None, description="path relative to this file, or none")
    visit: int | None = Field(
        default=None, ge=1, description="number of the patient's visit, where there are visits"
    )
    days: float | None = Field(default=None, description="since the visit before; none for the first one")
    before_codes: tuple[int, ...] | None = Field(
        default=None, min_length=WIDTH, max_length=WIDTH, description="of the visit before, if any"
    )
    prior: str | None = Field(default=None, description="report of the visit before")


def prediction_statistics(studies: Sequence[Prediction]) -> dict[str, Statistic]:
    """Return what every study adds to each text and label metric (no Java, no further models)."""
    texts = report_statistics([s.reference for s in studies], [s.generated for s in studies])
    gold, predicted = [s.gold_codes for s in studies], [s.predicted_codes for s in studies]
    control = other_patients_statistic(
        gold, predicted, [s.patient_id for s in studies], [s.site for s in studies]
    )
    return texts | label_statistics(gold, predicted) | control


def compare_predictions(
    names: tuple[str, str],
    ours: Sequence[Prediction],
    theirs: Sequence[Prediction],
    *,
    site: str,
    metrics: Sequence[str],
    replicates: int = 1000,
    seed: int = 0,
) -> list[ComparisonRecord]:
    """Return paired differences of two systems on the same studies, ready for `RunRecord.comparisons`.

    Studies of one patient are drawn together.

    Args:
        names: of the systems in tables.
        ours, theirs: of the same studies in the same order.
        site: where both were scored.
        metrics: to compare.
        replicates, seed: of the bootstrap.

    Raises:
        ValueError: the studies are not the same.
    """
    if [item.study_id for item in ours] != [item.study_id for item in theirs]:
        raise ValueError(f"{' and '.join(names)}: a paired comparison needs predictions of the same studies.")
    patients = [item.patient_id for item in ours]
    first, second = prediction_statistics(ours), prediction_statistics(theirs)
    rows = []
    for metric in metrics:
        difference = paired_difference(
            first[metric], second[metric], groups=patients, replicates=replicates, seed=seed
        )
        rows.append(
            ComparisonRecord(
                metric=metric,
                site=site,
                ours=names[0],
                theirs=names[1],
                value=difference.value,
                low=difference.low,
                high=difference.high,
                p=difference.p,
            )
        )
    return rows
