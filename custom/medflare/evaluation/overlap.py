# SPDX-License-Identifier: Apache-2.0
"""Overlap of the words of generated and reference texts: BLEU, ROUGE-L, CIDEr.

Counts and per-study scores come from pycocoevalcap and sacrebleu; here they become statistics that are
summed over studies (statistics.py). All values are fractions, CIDEr on its usual 0..10 scale.

Sources: Papineni et al., ACL 2002 (BLEU); Lin, 2004 (ROUGE-L, here coco-caption's, beta 1.2);
Vedantam et al., CVPR 2015 (CIDEr-D); Post, WMT 2018 (sacreBLEU, "13a" tokens).
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Sequence

import numpy as np

from medflare.evaluation.statistics import Array, Statistic, mean_statistic

ORDERS = 4
References = Sequence[Sequence[str]]  # of each study all its references; usually one


def bleu_statistics(references: References, hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """Return corpus BLEU-1..4 of tokenised texts as coco-caption computes it."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=ORDERS)
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        scorer += (hypothesis, list(reference))
    rows = []
    for c in scorer.ctest:
        closest = min((abs(length - c["testlen"]), length) for length in c["reflen"])[1]
        rows.append([c["testlen"], closest, *c["guess"], *c["correct"]])
    sums = np.asarray(rows, dtype=np.float64).reshape(-1, 2 + 2 * ORDERS)
    return {
        f"bleu_{n}": Statistic(sums, functools.partial(_coco_bleu, order=n)) for n in range(1, ORDERS + 1)
    }


def _coco_bleu(sums: Array, order: int) -> Array:
    """Return BLEU of counts [tokens, reference tokens, 4 guessed, 4 correct] with coco-caption's epsilons."""
    tiny, small = 1e-15, 1e-9
    length, reference = sums[..., 0], sums[..., 1]
    guessed, correct = sums[..., 2 : 2 + order], sums[..., 2 + ORDERS : 2 + ORDERS + order]
    precision = np.exp(np.log((correct + tiny) / (guessed + small)).mean(axis=-1))
    return precision * _brevity((length + tiny) / (reference + small))


def _brevity(ratio: Array) -> Array:
    """Return the brevity penalty of a length ratio."""
    return np.exp(np.minimum(0.0, 1 - 1 / np.maximum(ratio, 1e-300)))


def sacrebleu_statistic(references: Sequence[str], hypotheses: Sequence[str]) -> Statistic:
    """Return sacreBLEU's BLEU-4 as a fraction: raw texts, tokeniser 13a, case kept, exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    rows = [
        [s.sys_len, s.ref_len, *s.totals, *s.counts]
        for s in (
            metric.corpus_score([hypothesis], [[reference]])
            for reference, hypothesis in zip(references, hypotheses, strict=True)
        )
    ]
    return Statistic(np.asarray(rows, dtype=np.float64).reshape(-1, 2 + 2 * ORDERS), _sacre_bleu)


def _sacre_bleu(sums: Array) -> Array:
    """Return BLEU in which the k-th order without a match gets the precision 1 / (2^k guessed)."""
    guessed, correct = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    nothing = (correct == 0) & (guessed > 0)
    smoothed = np.where(nothing, 0.5 ** np.cumsum(nothing, axis=-1), correct)
    # sacreBLEU without effective order: no guess of an order, or no match at all, is a score of 0
    scorable = (guessed > 0).all(axis=-1) & (correct.sum(axis=-1) > 0)
    logs = np.log(np.where(scorable[..., None], smoothed / np.maximum(guessed, 1), 1.0))
    ratio = sums[..., 0] / np.maximum(sums[..., 1], 1)
    return np.where(scorable, np.exp(logs.mean(axis=-1)) * _brevity(ratio), 0.0)


def rouge_l(references: References, hypotheses: Sequence[str]) -> Statistic:
    """Return mean ROUGE-L of tokenised texts; a report without any token scores 0."""
    from pycocoevalcap.rouge.rouge import Rouge

    scorer = Rouge()
    pairs = zip(references, hypotheses, strict=True)
    return mean_statistic([scorer.calc_score([h], r) if h else 0.0 for r, h in pairs])


def rouge_n(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Statistic]:
    """Return mean F1 of ROUGE-1 to ROUGE-4 of tokenised texts, one reference each.

    Counted by Google's rouge-score without stemming, on the blanks of the tokenised text.
    """
    from rouge_score.rouge_scorer import RougeScorer

    names = [f"rouge{n}" for n in range(1, ORDERS + 1)]
    scorer = RougeScorer(names, tokenizer=_Blanks())
    found = [scorer.score(one, other) for one, other in zip(references, hypotheses, strict=True)]
    return {
        f"rouge_{n}": mean_statistic([scores[name].fmeasure for scores in found])
        for n, name in enumerate(names, 1)
    }


class _Blanks:
    """A tokenizer as rouge-score takes it, for texts that are tokenised."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def cider(references: References, hypotheses: Sequence[str]) -> Statistic:
    """Return mean CIDEr-D of tokenised texts.

    Document frequencies come from all references given and stay fixed under resampling; a resample with
    its own frequencies would be another metric. Of a single study it is 0 by definition (log 1).
    """
    from pycocoevalcap.cider.cider import Cider

    gold = {i: list(texts) for i, texts in enumerate(references)}
    generated = {i: [text] for i, text in enumerate(hypotheses)}
    with contextlib.redirect_stdout(io.StringIO()):
        return mean_statistic(Cider().compute_score(gold, generated)[1])
