# SPDX-License-Identifier: Apache-2.0
"""Facts about a cohort's questions and summaries for people: counts, never a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from medflare.data.counts import TextCounts
from medflare.data.grouped_split import count_repetitions
from medflare.data.readers.summaries_jsonl import masks
from medflare.data.records import Question, Summary


def question_facts(questions: Sequence[Question], counts: TextCounts) -> dict[str, Any]:
    """Return groups, options, right letters, words and repeats; empty where there are no questions."""
    if not questions:
        return {}
    return {
        "groups": _counted(question.group for question in questions),
        "options": _counted(str(len(question.options)) for question in questions),
        "answers": dict(sorted(Counter(question.answer for question in questions).items())),
        "words": words_per_report([question.text for question in questions]),
        "repeated": count_repetitions(questions),
        "changed": counts.to_json(),
    }


def summary_facts(summaries: Sequence[Summary], counts: TextCounts) -> dict[str, Any]:
    """Return groups, words of sources and targets, masks and repeats; empty where there are no summaries."""
    if not summaries:
        return {}
    return {
        "groups": _counted(summary.group for summary in summaries),
        "source_words": words_per_report([summary.source for summary in summaries]),
        "target_words": words_per_report([summary.target for summary in summaries]),
        "masked": sum(masks(summary) > 0 for summary in summaries),
        "repeated": count_repetitions(summaries),
        "changed": counts.to_json(),
    }


def words_per_report(reports: Sequence[str]) -> dict[str, float]:
    """Return mean, median, shortest and longest text in words; empty where there are none."""
    lengths = [len(report.split()) for report in reports]
    if not lengths:
        return {}
    return {
        "mean": round(fmean(lengths), 1),
        "median": float(median(lengths)),
        "min": float(min(lengths)),
        "max": float(max(lengths)),
    }


def _counted(names: Any) -> dict[str, int]:
    return dict(Counter(name or "none" for name in names).most_common())
