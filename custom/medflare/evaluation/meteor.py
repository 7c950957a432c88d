# SPDX-License-Identifier: Apache-2.0
"""METEOR 1.5 through coco-caption's Java program, kept as sums so that the corpus score can be resampled.

The program matches words (exact, stem, synonym, paraphrase) and returns counts; the score of those counts is
computed here (Denkowski & Lavie, WMT 2014, with the English ranking parameters), which agrees with the
program's own to the last digit, for one study as for a corpus.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from medflare.evaluation.meteor_program import meteor_lines
from medflare.evaluation.statistics import Array, Statistic, divide_or_zero, mean_statistic

SKIPPED = "skipped: METEOR needs Java"
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
STAGES = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase
# Columns of the program's line: lengths, function words, 4 stages x (content, content, function, function
# matches of hypothesis and reference in turn), chunks, matched words of each.
TEST, REFERENCE, TEST_FUNCTION, REFERENCE_FUNCTION = range(4)
CHUNKS, TEST_MATCHED, REFERENCE_MATCHED = 20, 21, 22


def java_present() -> bool:
    """Return whether METEOR can run on this machine."""
    return shutil.which("java") is not None


def meteor(references: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> Statistic:
    """Return METEOR of tokenised texts, one or more references a study.

    Raises:
        RuntimeError: there is no Java on this machine.
    """
    if not java_present():
        raise RuntimeError(SKIPPED)
    lines = meteor_lines([(h, list(r)) for r, h in zip(references, hypotheses, strict=True)])
    sums = np.asarray([[float(x) for x in line.split()] for line in lines]).reshape(-1, 23)
    one_piece = (sums[:, CHUNKS] == 1) & (sums[:, TEST_MATCHED] == sums[:, TEST])
    one_piece &= sums[:, REFERENCE_MATCHED] == sums[:, REFERENCE]
    sums[one_piece, CHUNKS] = 0  # a report matched in one piece is not fragmented
    return Statistic(sums, meteor_score)


class _NoSynonyms:
    """A WordNet without any word, for NLTK: no data is needed, and words match exactly or by their stem."""

    def synsets(self, word: str) -> list[object]:
        return []


def meteor_without_java(references: Sequence[str], hypotheses: Sequence[str]) -> Statistic:
    """Return mean METEOR of tokenised texts by NLTK, with exact and stem matches and no synonyms.

    Of the first METEOR (Banerjee and Lavie, 2005), with its weights: not comparable with the Java program's
    1.5, under whose name it is therefore not shown.
    """
    from nltk.translate.meteor_score import single_meteor_score

    wordnet: Any = _NoSynonyms()
    pairs = zip(references, hypotheses, strict=True)
    return mean_statistic(
        [single_meteor_score(r.split(), h.split(), wordnet=wordnet) if h and r else 0.0 for r, h in pairs]
    )


def meteor_score(sums: Array) -> Array:
    """Return METEOR of counts (..., 23) as the program prints them, summed over studies or not."""
    stages = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 4)

    def matched_share(side: int, length: Array, function: Array) -> Array:
        weighed = DELTA * stages[..., side] + (1 - DELTA) * stages[..., side + 2]
        return divide_or_zero(
            (STAGES * weighed).sum(-1), DELTA * (length - function) + (1 - DELTA) * function
        )

    precision = matched_share(0, sums[..., TEST], sums[..., TEST_FUNCTION])
    recall = matched_share(1, sums[..., REFERENCE], sums[..., REFERENCE_FUNCTION])
    mean = divide_or_zero(precision * recall, ALPHA * precision + (1 - ALPHA) * recall)
    matched = (sums[..., TEST_MATCHED] + sums[..., REFERENCE_MATCHED]) / 2
    return mean * (1 - GAMMA * divide_or_zero(sums[..., CHUNKS], matched) ** BETA)
