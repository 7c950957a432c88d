# SPDX-License-Identifier: Apache-2.0
"""Contribution of every note to each score of extraction, so that scores can be resampled and compared.

A document counts in a task that its annotation covers and that the model was asked for, and there only with
the types annotated in it. Given heads need not be among these; end to end, where the model looks for heads
itself, they must be, and the annotation must cover both tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from medflare.core.errors import DataError
from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.evaluation.extraction_matching import (
    Counts,
    Item,
    Tally,
    duplicates,
    lenient_tally,
    strict_tally,
)
from medflare.evaluation.extraction_predictions import PARSE_FAILURE, ScoredDocument
from medflare.evaluation.label_metrics import RATIOS, macro_statistic, micro_statistic
from medflare.evaluation.statistics import Statistic

TASKS = ("ner", "re_gold", "re_e2e")
"""Entities; modifiers of gold heads (comparable with the paper); modifiers of the heads the model found."""
COVERED = {"ner": {"ner"}, "re_gold": {"re"}, "re_e2e": {"ner", "re"}}
"""Task -> what a note's annotation must cover for the note to count in it."""
OUTPUTS = "outputs"
MATCHES = {"strict": strict_tally, "lenient": lenient_tally}


class Types(NamedTuple):
    """The fixed inventory that predictions are scored against."""

    entities: tuple[str, ...] = ENTITY_TYPES
    modifiers: tuple[str, ...] = MODIFIER_TYPES

    def counted(self, task: str) -> tuple[str, ...]:
        """Return the types that a task is broken down by."""
        return self.entities if task == "ner" else self.modifiers


CLINICAL = Types()


def statistic_names(types: Types = CLINICAL) -> tuple[str, ...]:
    """Return the names of what `task_scores` may hold; kinds of faults have names of their own."""
    names = []
    for task in TASKS:
        for match in MATCHES:
            for ratio in RATIOS:
                names += [
                    f"{task}_{variant}_{ratio}" for variant in (match, f"{match}_untyped", f"macro_{match}")
                ]
                if match == "strict" or ratio == "f1":
                    names += [f"{task}_{match}_{ratio}/{name}" for name in types.counted(task)]
    return (*names, "parse_failure_rate", "duplicate_rate")


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Scores that are sums over the same notes, and the totals behind them."""

    documents: Sequence[ScoredDocument]
    statistics: dict[str, Statistic]
    counts: dict[str, Counts] = field(default_factory=dict)

    @property
    def units(self) -> list[tuple[str, str, str]]:
        """One name per note; notes of one name (a patient's) are drawn together."""
        return [item.unit for item in self.documents]


def task_scores(documents: Sequence[ScoredDocument], types: Types = CLINICAL) -> dict[str, TaskScores]:
    """Return the scores of each of TASKS and of OUTPUTS, over the notes that count there."""
    parts = {task: _scores_of_task(task, documents, types) for task in TASKS}
    counted = [item for item in documents if item.outputs]
    return parts | {OUTPUTS: TaskScores(counted, _rates(counted))}


def _scores_of_task(task: str, documents: Sequence[ScoredDocument], types: Types) -> TaskScores:
    covered = [item for item in documents if COVERED[task].issubset(item.tasks)]
    asked = [(item, items) for item in covered if (items := _predicted(item, task)) is not None]
    sides = [
        (_scored(item, _gold(item, task), task, types), _scored(item, items, task, types))
        for item, items in asked
    ]
    part = TaskScores([item for item, _ in asked], {})
    for match, tally in MATCHES.items() if sides else ():
        tallies = [tally(gold, predicted, types.counted(task)) for gold, predicted in sides]
        part.statistics.update(_statistics(task, match, tallies, types.counted(task)))
        part.counts.update(_counts(f"{task}_{match}", tallies, types.counted(task)))
    return part


def _predicted(item: ScoredDocument, task: str) -> Sequence[Item] | None:
    if task == "ner":
        return item.predicted_entities
    return item.links_gold_heads if task == "re_gold" else item.links_end_to_end


def _gold(item: ScoredDocument, task: str) -> Sequence[Item]:
    return item.gold_entities if task == "ner" else item.gold_links


def _scored(item: ScoredDocument, items: Sequence[Item], task: str, types: Types) -> list[Item]:
    """Return the items whose types were annotated; DataError for one outside the inventory."""
    for one in items:
        _check(item, one, task, types)
    if item.annotated is None:
        return list(items)
    looked_for = set(item.annotated) | set(types.entities if task == "re_gold" else ())
    return [one for one in items if looked_for.issuperset(_labels(one))]


def _labels(item: Item) -> tuple[str, ...]:
    return tuple(mention.label for mention in item.mentions)


def _check(document: ScoredDocument, item: Item, task: str, types: Types) -> None:
    for label, known in zip(_labels(item), (types.entities, types.modifiers), strict=False):
        if label not in known:
            raise DataError(
                f"note '{document.note_id}' of site '{document.site}', {task}: the type '{label}' is not in "
                f"the inventory ({', '.join(known)}). Map it to one of these, or leave the item out and "
                "count it as a fault."
            )


def _statistics(
    task: str, match: str, tallies: Sequence[Tally], types: Sequence[str]
) -> dict[str, Statistic]:
    """Return micro, untyped and macro ratios, and one type's: all three when strict, F1 when lenient."""
    typed = np.stack([item.typed for item in tallies])
    untyped = np.stack([item.untyped for item in tallies])[:, None]
    marked = (typed[..., 0] + typed[..., 2]).sum(axis=0) > 0
    statistics: dict[str, Statistic] = {}
    for ratio in RATIOS:
        statistics[f"{task}_{match}_{ratio}"] = micro_statistic(typed, ratio)
        statistics[f"{task}_{match}_untyped_{ratio}"] = micro_statistic(untyped, ratio)
        statistics[f"{task}_macro_{match}_{ratio}"] = macro_statistic(typed[:, marked], ratio)
        if match == "strict" or ratio == "f1":
            for place, name in enumerate(types):
                statistics[f"{task}_{match}_{ratio}/{name}"] = micro_statistic(typed[:, [place]], ratio)
    return statistics


def _counts(name: str, tallies: Sequence[Tally], types: Sequence[str]) -> dict[str, Counts]:
    typed = np.sum([item.typed for item in tallies], axis=0)
    rows = {name: typed.sum(axis=0), f"{name}_untyped": np.sum([item.untyped for item in tallies], axis=0)}
    rows |= {f"{name}/{t}": row for t, row in zip(types, typed, strict=True)}
    return {key: Counts(*(int(x) for x in row)) for key, row in rows.items()}


def _rates(documents: Sequence[ScoredDocument]) -> dict[str, Statistic]:
    """Return shares of outputs with a fault, and of predicted items that repeat another."""
    if not documents:
        return {}
    outputs = [item.outputs for item in documents]
    faults = sorted({fault for item in documents for fault in item.faults} - {PARSE_FAILURE})
    names = {"parse_failure_rate": PARSE_FAILURE} | {f"fault/{fault}": fault for fault in faults}
    shares = {
        n: _share([item.faults.get(fault, 0) for item in documents], outputs) for n, fault in names.items()
    }
    predicted = [[_predicted(item, task) or () for task in TASKS] for item in documents]
    repeats = [sum(map(duplicates, lists)) for lists in predicted]
    return shares | {"duplicate_rate": _share(repeats, [sum(map(len, lists)) for lists in predicted])}


def _share(parts: Sequence[int], totals: Sequence[int]) -> Statistic:
    """Return parts of totals, as the precision of that many right items and the others wrong."""
    rows = [[(part, total - part, 0)] for part, total in zip(parts, totals, strict=True)]
    return micro_statistic(np.asarray(rows, dtype=np.float64), "precision")
