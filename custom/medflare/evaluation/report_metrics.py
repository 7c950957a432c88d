# SPDX-License-Identifier: Apache-2.0
"""All scores of generated reports against references, each with its interval.

Every value is a fraction (CIDEr on 0..10); tables multiply by 100 as papers do. A score that cannot be
computed here is left out and explained in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from medflare.data.text import clean_report, tokens
from medflare.evaluation import meteor as meteor_program
from medflare.evaluation import overlap
from medflare.evaluation.label_metrics import (
    CONDITION_METRICS,
    OTHER_PATIENTS,
    condition_statistics,
    label_metrics,
    label_names,
    label_statistics,
    other_patients_statistic,
)
from medflare.evaluation.plugin_metrics import plugin_statistics
from medflare.evaluation.scorers import OPTIONAL_METRICS, optional_statistics
from medflare.evaluation.statistics import Evaluation, Groups, Statistic, bootstrap

__all__ = ["Evaluation", "evaluate_reports", "label_metrics", "quick_metrics", "report_statistics"]

QUICK = (
    *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"),
    *("label_f1", "label_micro_f1", "label_macro_f1"),
)
"""Metrics of the curves of a running training."""
BLEU = tuple(f"bleu_{order}" for order in range(1, overlap.ORDERS + 1))
METEOR, METEOR_EXACT = "meteor", "meteor_exact_stem"
"""METEOR 1.5 by its Java program; the first METEOR with exact and stem matches, which needs none."""
TEXT = (
    *(*BLEU, "rouge_l", "cider", "sacrebleu"),
    *(*(f"r2gen_{name}" for name in BLEU), "r2gen_rouge_l"),
)
"""Metrics of `report_statistics`."""
FURTHER = (*(f"rouge_{order}" for order in range(1, overlap.ORDERS + 1)), METEOR_EXACT)
"""Metrics of `further_statistics`."""
METRICS = (
    *(*TEXT, *FURTHER, METEOR, *label_names(), OTHER_PATIENTS, *CONDITION_METRICS),
    *OPTIONAL_METRICS,
)
"""Metrics that `evaluate_reports` may have; some need Java or weights of their own."""


def rule_codes(texts: Sequence[str]) -> np.ndarray:
    """Return (texts, 14) codes by the built-in rule labeller."""
    from medflare.labelling.labels import label_report

    return np.asarray([label_report(text) for text in texts], dtype=np.int64).reshape(-1, 14)


def tokenised(texts: Sequence[str]) -> list[str]:
    """Return lower-cased words and marks, one blank between; coco-caption's own tokeniser needs Java."""
    return [" ".join(tokens(text)) for text in texts]


def single_references(texts: Sequence[str]) -> list[list[str]]:
    """Return one reference for each study, as the metrics expect them."""
    return [[text] for text in texts]


def report_statistics(
    references: Sequence[str], hypotheses: Sequence[str], reference_words: int | None = None
) -> dict[str, Statistic]:
    """Return BLEU-1..4, ROUGE-L, CIDEr and sacreBLEU of raw texts, tokenised where the metric needs it.

    `r2gen_*` are scored after R2Gen's cleaning rules, the form in which published numbers are comparable.

    Args:
        reference_words: words of a reference that `r2gen_*` keep: PromptMRG scores against the first 100 of
            the cleaned reference, which raises every score of a short draft. None keeps all.

    Raises:
        ValueError: there are no texts, or not as many references as generated reports.
    """
    if len(references) != len(hypotheses) or not references:
        raise ValueError(
            f"Found {len(references)} references and {len(hypotheses)} generated reports; "
            "both lists must hold the same studies, at least one."
        )
    gold, generated = single_references(tokenised(references)), tokenised(hypotheses)
    plain = [
        [" ".join(clean_report(t, "r2gen").split()) for t in texts] for texts in (references, hypotheses)
    ]
    kept = [" ".join(text.split()[:reference_words]) for text in plain[0]]
    published = single_references(kept), plain[1]
    return {
        **overlap.bleu_statistics(gold, generated),
        "rouge_l": overlap.rouge_l(gold, generated),
        "cider": overlap.cider(gold, generated),
        "sacrebleu": overlap.sacrebleu_statistic(references, hypotheses),
        **{f"r2gen_{name}": item for name, item in overlap.bleu_statistics(*published).items()},
        "r2gen_rouge_l": overlap.rouge_l(*published),
    }


def further_statistics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """Return ROUGE-1 to ROUGE-4 and METEOR without synonyms of raw texts."""
    gold, generated = tokenised(references), tokenised(hypotheses)
    return {
        **overlap.rouge_n(gold, generated),
        METEOR_EXACT: meteor_program.meteor_without_java(gold, generated),
    }


def meteor_statistics(
    references: Sequence[str], hypotheses: Sequence[str]
) -> tuple[dict[str, Statistic], dict[str, str]]:
    """Return METEOR of raw texts, or why it was skipped: it needs Java."""
    if not meteor_program.java_present():
        return {}, {METEOR: meteor_program.SKIPPED}
    gold, generated = single_references(tokenised(references)), tokenised(hypotheses)
    return {METEOR: meteor_program.meteor(gold, generated)}, {}


def quick_metrics(
    references: Sequence[str],
    hypotheses: Sequence[str],
    gold_codes: ArrayLike,
    predicted_codes: ArrayLike | None = None,
) -> dict[str, float]:
    """Return plain numbers for the curves of a running training: no intervals, no Java, no further models."""
    codes = rule_codes(hypotheses) if predicted_codes is None else predicted_codes
    statistics = report_statistics(references, hypotheses) | label_statistics(gold_codes, codes)
    return {name: statistics[name].value for name in QUICK}


def evaluate_reports(
    references: Sequence[str],
    hypotheses: Sequence[str],
    gold_codes: ArrayLike,
    predicted_codes: ArrayLike | None = None,
    *,
    scorers: Mapping[str, str | Path] | None = None,
    groups: Groups = None,
    replicates: int = 1000,
    seed: int = 0,
    reference_words: int | None = None,
) -> Evaluation:
    """Return every metric of the reports with its 95 % interval over studies.

    Args:
        references, hypotheses: raw texts of the same studies.
        gold_codes, predicted_codes: (studies, 14) of `Code`; predicted ones default to what the rule
            labeller reads in the generated text.
        scorers: optional scorer -> local folder of its weights (scorers.py lists them).
        groups: patient of each study, to resample patients instead of studies.
        reference_words: as in `report_statistics`.
    """
    words, skipped = meteor_statistics(references, hypotheses)
    statistics = report_statistics(references, hypotheses, reference_words) | words
    statistics |= further_statistics(references, hypotheses)
    codes = rule_codes(hypotheses) if predicted_codes is None else predicted_codes
    statistics |= label_statistics(gold_codes, codes) | condition_statistics(gold_codes, codes)
    statistics |= other_patients_statistic(gold_codes, codes, groups or range(len(references)))
    more, missing = optional_statistics(references, hypotheses, scorers or {})
    statistics |= more
    added, failed = plugin_statistics(references, hypotheses, METRICS)
    statistics |= added
    estimates = bootstrap(statistics, groups=groups, replicates=replicates, seed=seed)
    return Evaluation(estimates, skipped | missing | failed, statistics)
