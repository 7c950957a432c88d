# SPDX-License-Identifier: Apache-2.0
"""Summaries of every test text of a site, and how near they are to the physician's own.

BLEU-1..4, ROUGE-L and sacreBLEU as of reports; METEOR where there is Java; label F1 of the 14 conditions
where enough references speak of one; BERTScore where its weights are here; `length_ratio`: words written for
each word of the references. The file of summaries holds the texts, so it stays where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from medflare.core.run_record import RecordModel
from medflare.evaluation.label_metrics import label_names, label_statistics
from medflare.evaluation.plugin_metrics import plugin_statistics
from medflare.evaluation.report_metrics import METEOR, meteor_statistics, report_statistics, rule_codes
from medflare.evaluation.scorers import OPTIONAL_METRICS, optional_statistics
from medflare.evaluation.statistics import Evaluation, Statistic, bootstrap, ratio_of_sums

TEXT = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "sacrebleu")
QUICK = ("bleu_1", "bleu_4", "rouge_l", "length_ratio")
METRICS = (*TEXT, "length_ratio", METEOR, *label_names(), *OPTIONAL_METRICS)
"""Metrics that `evaluate_summaries` may have."""
LABELLED = 0.2
"""Share of references that must speak of a condition for label scores to mean anything."""
NO_LABELS = "skipped: fewer than a fifth of the references speak of one of the 13 chest X-ray conditions"


class WrittenSummary(RecordModel):
    """One text: what the physician made of it, and what the model did."""

    summary_id: str
    patient_id: str
    site: str
    adapter: Literal["generic", "personalised", "none"]
    source: str
    reference: str
    generated: str
    group: str = ""
    ended: bool = Field(True, description="whether the model ended by itself within its budget")
    cut: bool = Field(False, description="whether the source did not fit and lost its beginning")


def summary_statistics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """Return what every text adds to BLEU, ROUGE-L, sacreBLEU and the ratio of lengths."""
    statistics = report_statistics(references, hypotheses)
    return {name: statistics[name] for name in TEXT} | {"length_ratio": _lengths(references, hypotheses)}


def _lengths(references: Sequence[str], hypotheses: Sequence[str]) -> Statistic:
    pairs = zip(references, hypotheses, strict=True)
    words = [[len(generated.split()), len(reference.split())] for reference, generated in pairs]
    return Statistic(np.asarray(words, dtype=np.float64).reshape(-1, 2), ratio_of_sums)


def quick_summary_metrics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Return plain numbers for the curves of a running training."""
    statistics = summary_statistics(references, hypotheses)
    return {name: statistics[name].value for name in QUICK}


def evaluate_summaries(
    written: Sequence[WrittenSummary],
    *,
    scorers: Mapping[str, str | Path] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Return every metric with its 95 % bootstrap interval over patients.

    Args:
        written: one site's summaries.
        scorers: optional scorer -> local folder of its weights (scorers.py lists them).
        replicates, seed: of the bootstrap.
    """
    gold, generated = [item.reference for item in written], [item.generated for item in written]
    words, skipped = meteor_statistics(gold, generated)
    statistics = summary_statistics(gold, generated) | words
    codes = rule_codes(gold)
    if (codes[:, :-1] != 0).any(1).mean() >= LABELLED:
        statistics |= label_statistics(codes, rule_codes(generated))
    else:
        skipped["label_f1"] = NO_LABELS
    more, missing = optional_statistics(gold, generated, scorers or {})
    wanted = {name: why for name, why in missing.items() if name in {"bertscore", *(scorers or {})}}
    statistics |= more
    added, failed = plugin_statistics(gold, generated, METRICS)
    statistics |= added
    groups = [item.patient_id or item.summary_id for item in written]
    estimates = bootstrap(statistics, groups=groups, replicates=replicates, seed=seed)
    return Evaluation(estimates, skipped | wanted | failed, statistics)
