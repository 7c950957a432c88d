# SPDX-License-Identifier: Apache-2.0
"""Summaries of a site's texts, and their scores."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.data.patients import named_patient
from medflare.data.records import Summary
from medflare.evaluation.summary_metrics import METRICS, QUICK, WrittenSummary, evaluate_summaries
from medflare.tasks.scoring import AdapterKind, TextRecords
from medflare.tasks.summaries.summariser import Summariser, load_summariser


def write_summaries(
    summariser: Summariser, summaries: Sequence[Summary], site: str, adapter: AdapterKind
) -> list[WrittenSummary]:
    """Return every text with the summary that the model wrote."""
    return [
        WrittenSummary(
            summary_id=summary.summary_id,
            patient_id=summary.patient_id,
            site=site,
            adapter=adapter,
            source=summary.source,
            reference=summary.target,
            generated=generated.text,
            group=summary.group,
            ended=generated.ended,
            cut=generated.cut,
        )
        for summary, generated in zip(summaries, summariser.write(summaries), strict=True)
    ]


SUMMARIES = TextRecords(
    record_name="summary",
    records=lambda cohort: cohort.summaries,
    load=load_summariser,
    predict=write_summaries,
    evaluate=lambda written, scorers, seed: evaluate_summaries(written, scorers=scorers, seed=seed),
    quick=QUICK,
    patient=lambda summary: named_patient(summary.patient_id, summary.summary_id),
    metrics=METRICS,
    scorers=True,
)
score_result = SUMMARIES.score_result
