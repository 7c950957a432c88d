# SPDX-License-Identifier: Apache-2.0
"""What a model wrote for every test text of a site, and how near it is to the physician's own summary.

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

from medflare.core.json_lines import read_lines
from medflare.core.run_record import RecordModel
from medflare.evaluation import meteor as meteor_program
from medflare.evaluation.label_metrics import label_statistics
from medflare.evaluation.report_metrics import (
    Evaluation,
    one_each,
    report_statistics,
    rule_codes,
    tokenised,
)
from medflare.evaluation.scorers import optional_statistics
from medflare.evaluation.statistics import Array, Statistic, bootstrap

TEXT = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "sacrebleu")
QUICK = ("bleu_1", "bleu_4", "rouge_l", "length_ratio")
LABELLED = 0.2
"""Share of references that must speak of a condition for label scores to mean anything; "no finding" is what
the labeller says of any other text too."""
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


def read_summaries(path: Path) -> list[WrittenSummary]:
    """The texts of a predictions file; DataError names the file and the first line that is wrong."""
    return read_lines(path, WrittenSummary, "a summary")


def summary_statistics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """What every text adds to BLEU, ROUGE-L, sacreBLEU and the ratio of lengths."""
    found = report_statistics(references, hypotheses)
    return {name: found[name] for name in TEXT} | {"length_ratio": _lengths(references, hypotheses)}


def _lengths(references: Sequence[str], hypotheses: Sequence[str]) -> Statistic:
    words = [
        [len(said.split()), len(gold.split())] for gold, said in zip(references, hypotheses, strict=True)
    ]
    return Statistic(np.asarray(words, dtype=np.float64).reshape(-1, 2), _share)


def _share(sums: Array) -> Array:
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def quick_summary_metrics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Plain numbers for the curves of a running training."""
    found = summary_statistics(references, hypotheses)
    return {name: found[name].value for name in QUICK}


def said_codes(texts: Sequence[str]) -> np.ndarray:
    """(texts, 14) codes by the rule labeller; a text without a word says nothing, not that all is well."""
    empty = [not any(letter.isalpha() for letter in text) for text in texts]
    return np.where(np.asarray(empty)[:, None], 0, rule_codes(texts))


def evaluate_summaries(
    written: Sequence[WrittenSummary],
    *,
    scorers: Mapping[str, str | Path] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Every metric with its 95 % bootstrap interval over patients.

    Args:
        scorers: optional scorer -> local folder of its weights (scorers.py lists them).
    """
    gold, said = [item.reference for item in written], [item.generated for item in written]
    found = summary_statistics(gold, said)
    skipped: dict[str, str] = {}
    if meteor_program.java_present():
        found["meteor"] = meteor_program.meteor(one_each(tokenised(gold)), tokenised(said))
    else:
        skipped["meteor"] = meteor_program.SKIPPED
    codes = rule_codes(gold)
    if (codes[:, :-1] != 0).any(1).mean() >= LABELLED:
        found |= label_statistics(codes, said_codes(said))
    else:
        skipped["label_f1"] = NO_LABELS
    more, missing = optional_statistics(gold, said, scorers or {})
    wanted = {name: why for name, why in missing.items() if name in {"bertscore", *(scorers or {})}}
    found |= more
    groups = [item.patient_id or item.summary_id for item in written]
    estimates = bootstrap(found, groups=groups, replicates=replicates, seed=seed)
    return Evaluation(estimates, skipped | wanted, found)
