# SPDX-License-Identifier: Apache-2.0
"""Scores of extracted entities and modifiers with their intervals.

Names: `{ner|re_gold|re_e2e}_{strict|lenient}_{precision|recall|f1}` are micro over documents and typed;
`ner_strict_untyped_f1` ignores types; `ner_macro_strict_f1` is the plain mean over the types that occur in
the gold annotation; `ner_strict_f1/problem` is one type. `re_gold` is given gold heads (comparable with the
paper), `re_e2e` the heads that the model found itself. `parse_failure_rate` and `fault/<kind>` are shares of
outputs, `duplicate_rate` is one of predicted items. Ratios of nothing to nothing are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from medflare.core.errors import DataError
from medflare.core.run_record import Estimate
from medflare.evaluation.extraction_matching import Counts
from medflare.evaluation.extraction_predictions import ScoredDocument
from medflare.evaluation.extraction_statistics import CLINICAL, OUTPUTS, TASKS, TaskScores, Types, task_scores
from medflare.evaluation.label_metrics import RATIOS
from medflare.evaluation.statistics import (
    Difference,
    Statistic,
    bootstrap,
    paired_difference,
)

HEADLINE = ("ner_strict_f1", "ner_lenient_f1", "re_gold_strict_f1", "re_e2e_strict_f1")
QUICK = (
    *(f"{task}_strict_{ratio}" for task in TASKS for ratio in RATIOS),
    *(f"{task}_{match}_f1" for task in TASKS for match in ("lenient", "macro_strict", "strict_untyped")),
    "parse_failure_rate",
)
NOT_SCORED = {
    "ner": "no note is annotated for entities and was searched for them",
    "re_gold": "no note is annotated for modifiers and was searched for those of its gold heads",
    "re_e2e": "no note is annotated for entities and modifiers and was searched for them end to end",
    OUTPUTS: "the notes do not say how many outputs the model wrote",
}
SHOWN = 5  # differing documents that an error names


class ExtractionScores(NamedTuple):
    """Result of `evaluate_extraction`.

    Attributes:
        skipped: metric -> why it has no estimate.
        counts: `ner_strict`, `ner_strict/problem`, `ner_strict_untyped` ... over all notes.
        statistics: what every scored note adds to each metric; the notes differ between tasks.
    """

    estimates: dict[str, Estimate]
    skipped: dict[str, str]
    counts: dict[str, Counts]
    statistics: dict[str, Statistic]


def evaluate_extraction(
    documents: Sequence[ScoredDocument], *, types: Types = CLINICAL, replicates: int = 1000, seed: int = 0
) -> ExtractionScores:
    """Return every metric with its 95 % bootstrap interval over documents.

    Documents of one patient are drawn together where the patient is known. Types that were neither
    annotated nor predicted have no score of their own.

    Raises:
        DataError: no documents, one twice, or a type outside the inventory.
    """
    scored = ExtractionScores({}, {}, {}, {})
    for task, part in task_scores(list(_by_key(documents).values()), types).items():
        if not part.documents:
            scored.skipped[task] = NOT_SCORED[task]
            continue
        empty = [
            t for t in types.counted(task) if task != OUTPUTS and not any(part.counts[f"{task}_strict/{t}"])
        ]
        if empty:
            scored.skipped[f"{task}/"] = f"neither marked nor predicted: {', '.join(empty)}"
        shown = {n: item for n, item in part.statistics.items() if n.partition("/")[2] not in empty}
        scored.estimates.update(bootstrap(shown, groups=part.units, replicates=replicates, seed=seed))
        scored.counts.update(part.counts)
        scored.statistics.update(shown)
    return scored


def quick_extraction_metrics(
    documents: Sequence[ScoredDocument], *, types: Types = CLINICAL
) -> dict[str, float]:
    """Return plain numbers for the curves of a running training: those of QUICK that were predicted."""
    parts = task_scores(list(_by_key(documents).values()), types)
    statistics = {name: item for part in parts.values() for name, item in part.statistics.items()}
    return {name: statistics[name].value for name in QUICK if name in statistics}


def compare(
    documents_a: Sequence[ScoredDocument],
    documents_b: Sequence[ScoredDocument],
    metric: str,
    *,
    types: Types = CLINICAL,
    replicates: int = 1000,
    seed: int = 0,
) -> Difference:
    """Compare two systems, a minus b, on the same documents: paired bootstrap interval, permutation p-value.

    In a permutation every document (a patient's together) swaps its counts between the systems with
    probability one half; the p-value is two-sided and never 0.

    Raises:
        DataError: other documents, another gold annotation, or a metric that was not scored.
    """
    first, second = _aligned(documents_a, documents_b)
    ours, theirs = (_scores_with(metric, task_scores(side, types)) for side in (first, second))
    if [item.key for item in ours.documents] != [item.key for item in theirs.documents]:
        raise DataError(f"{metric}: the two systems were not asked for it in the same documents.")
    a, b = ours.statistics[metric], theirs.statistics[metric]
    return paired_difference(a, b, groups=ours.units, replicates=replicates, seed=seed)


def _aligned(
    a: Sequence[ScoredDocument], b: Sequence[ScoredDocument]
) -> tuple[list[ScoredDocument], list[ScoredDocument]]:
    """Return both sides in one order; DataError names the documents that differ."""
    ours, theirs = _by_key(a), _by_key(b)
    wrong = [f"{_name(key)} is only in the first" for key in ours if key not in theirs]
    wrong += [f"{_name(key)} is only in the second" for key in theirs if key not in ours]
    shared = [key for key in ours if key in theirs]
    wrong += [f"{_name(k)} has another gold annotation" for k in shared if _gold(ours[k]) != _gold(theirs[k])]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        listed = "; ".join(wrong[:SHOWN])
        raise DataError(f"The systems were not scored on the same documents: {listed}{more}.")
    return list(ours.values()), [theirs[key] for key in ours]


def _gold(item: ScoredDocument) -> tuple[object, ...]:
    annotated = None if item.annotated is None else frozenset(item.annotated)
    return frozenset(item.gold_entities), frozenset(item.gold_links), frozenset(item.tasks), annotated


def _name(key: tuple[str, str]) -> str:
    return f"note '{key[1]}' of site '{key[0]}'"


def _by_key(documents: Iterable[ScoredDocument]) -> dict[tuple[str, str], ScoredDocument]:
    by_key: dict[tuple[str, str], ScoredDocument] = {}
    for item in documents:
        if item.key in by_key:
            both = f"{by_key[item.key].adapter} and {item.adapter}"
            raise DataError(f"{_name(item.key)} occurs twice (adapters {both}); score one adapter at a time.")
        by_key[item.key] = item
    if not by_key:
        raise DataError("There is no document to score.")
    return by_key


def _scores_with(metric: str, parts: dict[str, TaskScores]) -> TaskScores:
    for part in parts.values():
        if metric in part.statistics:
            return part
    names = [name for part in parts.values() for name in part.statistics if "/" not in name]
    raise DataError(f"'{metric}' was not scored here; there are {', '.join(names)}, and /type of many.")
