# SPDX-License-Identifier: Apache-2.0
"""All scores of generated reports against references, each with its interval.

Every value is a fraction (CIDEr on 0..10); tables multiply by 100 as papers do. A score that cannot be
computed here is left out and explained in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from medflare.core.run_record import Estimate
from medflare.data.text import clean_report, tokens
from medflare.evaluation import meteor as meteor_program
from medflare.evaluation import overlap
from medflare.evaluation.label_metrics import condition_statistics, label_metrics, label_statistics
from medflare.evaluation.scorers import optional_statistics
from medflare.evaluation.statistics import Groups, Statistic, bootstrap

__all__ = ["Evaluation", "evaluate_reports", "label_metrics", "quick_metrics", "report_statistics"]

HEADLINE = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider")


class Evaluation(NamedTuple):
    """What `evaluate_reports` found; `statistics` holds what every study adds to each metric."""

    estimates: dict[str, Estimate]
    skipped: dict[str, str]
    statistics: dict[str, Statistic]


def rule_codes(texts: Sequence[str]) -> np.ndarray:
    """(texts, 14) codes by the built-in rule labeller."""
    from medflare.labelling.labels import label_report

    return np.asarray([label_report(text) for text in texts], dtype=np.int64).reshape(-1, 14)


def tokenised(texts: Sequence[str]) -> list[str]:
    """Lower-cased words and punctuation marks, one blank between; coco-caption's own tokeniser needs Java."""
    return [" ".join(tokens(text)) for text in texts]


def one_each(texts: Sequence[str]) -> list[list[str]]:
    """Studies with one reference each, as the metrics expect them."""
    return [[text] for text in texts]


def report_statistics(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """BLEU-1..4, ROUGE-L, CIDEr and sacreBLEU of raw texts; tokenised here where the metric needs it.

    `r2gen_*` are scored after R2Gen's cleaning rules, the form in which published numbers are comparable.
    """
    if len(references) != len(hypotheses) or not references:
        raise ValueError(
            f"Found {len(references)} references and {len(hypotheses)} generated reports; "
            "both lists must hold the same studies, at least one."
        )
    gold, said = one_each(tokenised(references)), tokenised(hypotheses)
    plain = [
        [" ".join(clean_report(t, "r2gen").split()) for t in texts] for texts in (references, hypotheses)
    ]
    published = one_each(plain[0]), plain[1]
    return {
        **overlap.bleu_statistics(gold, said),
        "rouge_l": overlap.rouge_l(gold, said),
        "cider": overlap.cider(gold, said),
        "sacrebleu": overlap.sacrebleu_statistic(references, hypotheses),
        **{f"r2gen_{name}": item for name, item in overlap.bleu_statistics(*published).items()},
        "r2gen_rouge_l": overlap.rouge_l(*published),
    }


def quick_metrics(
    references: Sequence[str],
    hypotheses: Sequence[str],
    gold_codes: ArrayLike,
    predicted_codes: ArrayLike | None = None,
) -> dict[str, float]:
    """Plain numbers for the curves of a running training: no intervals, no Java, no further models."""
    codes = rule_codes(hypotheses) if predicted_codes is None else predicted_codes
    found = report_statistics(references, hypotheses) | label_statistics(gold_codes, codes)
    return {name: found[name].value for name in (*HEADLINE, "label_f1", "label_micro_f1", "label_macro_f1")}


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
) -> Evaluation:
    """Every metric of the reports with its 95 % interval over studies.

    Args:
        gold_codes, predicted_codes: (studies, 14) of `Code`; predicted ones default to what the rule
            labeller reads in the generated text.
        scorers: optional scorer -> local folder of its weights (scorers.py lists them).
        groups: patient of each study, to resample patients instead of studies.
    """
    found = report_statistics(references, hypotheses)
    skipped: dict[str, str] = {}
    if meteor_program.java_present():
        found["meteor"] = meteor_program.meteor(one_each(tokenised(references)), tokenised(hypotheses))
    else:
        skipped["meteor"] = meteor_program.SKIPPED
    codes = rule_codes(hypotheses) if predicted_codes is None else predicted_codes
    found |= label_statistics(gold_codes, codes) | condition_statistics(gold_codes, codes)
    more, missing = optional_statistics(references, hypotheses, scorers or {})
    found |= more
    estimates = bootstrap(found, groups=groups, replicates=replicates, seed=seed)
    return Evaluation(estimates, skipped | missing, found)
