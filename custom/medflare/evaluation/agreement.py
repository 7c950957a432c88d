# SPDX-License-Identifier: Apache-2.0
"""Agreement of single predictions with their references, by which galleries rank what they show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from medflare.evaluation import overlap
from medflare.evaluation.change_extraction import changes_in
from medflare.evaluation.extraction_matching import Counts, set_counts
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.evaluation.label_metrics import counts, precision_recall_f1
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.report_metrics import single_references, tokenised
from medflare.evaluation.summary_metrics import WrittenSummary
from medflare.evaluation.temporal_coherence import changes_that_happened
from medflare.evaluation.visit_metrics import change_statistics

ConditionChanges = frozenset[tuple[int, str]]
"""(place of the condition in CONDITIONS, word for the change)."""


def finding_agreement(item: Prediction) -> float:
    """Return the F1 of the conditions that one study's reports affirm, from 0 to 1."""
    tp, fp, fn = (part.sum(axis=1) for part in counts([item.gold_codes], [item.predicted_codes]))
    return float(precision_recall_f1(tp, fp, fn)[2][0])


def change_agreement(visits: Sequence[Prediction]) -> float:
    """Return the F1 of the changes in the reports of one patient's visits, 0 where there are none."""
    statistics = change_statistics(visits)
    return float(statistics["change_f1"].value) if statistics else 0.0


def changes_of(item: Prediction) -> tuple[ConditionChanges, ConditionChanges] | None:
    """Return the changes since the visit before that happened, and those that the generated report states.

    None at a patient's first visit.
    """
    if item.before_codes is None:
        return None
    (happened,) = changes_that_happened([item.reference], [item.before_codes], [item.gold_codes])
    return frozenset(happened), frozenset(changes_in(item.generated))


def summary_agreement(items: Sequence[WrittenSummary]) -> list[float]:
    """Return the ROUGE-L of each summary, from 0 to 1."""
    gold, generated = [item.reference for item in items], [item.generated for item in items]
    scores = overlap.rouge_l(single_references(tokenised(gold)), tokenised(generated)).sums[:, 0]
    return [float(score) for score in scores]


def option_shares(scores: Sequence[float]) -> list[float]:
    """Return each option's likelihood among the options of its question, from their log-likelihoods."""
    top = max(scores)
    each = [math.exp(score - top) for score in scores]
    return [value / sum(each) for value in each]


def note_counts(item: ScoredDocument) -> dict[str, Counts]:
    """Return strict counts of one note: `entities`, and `modifiers` of the annotated entities.

    A part is left out where the annotation does not cover it or the model was not asked for it.
    """
    parts = {}
    if "ner" in item.tasks and item.predicted_entities is not None:
        sides = (item.gold_entities, item.predicted_entities)
        parts["entities"] = set_counts(*(annotated_mentions(item, side) for side in sides))
    if "re" in item.tasks and item.links_gold_heads is not None:
        links = (item.gold_links, item.links_gold_heads)
        parts["modifiers"] = set_counts(*(annotated_links(item, side) for side in links))
    return parts


def note_agreement(item: ScoredDocument) -> float:
    """Return the F1 of one note over entities and modifiers together, from 0 to 1."""
    return Counts(*(sum(part) for part in zip((0, 0, 0), *note_counts(item).values(), strict=True))).ratios[2]


def annotated_mentions(item: ScoredDocument, mentions: Iterable[EntityMention]) -> list[EntityMention]:
    """Return the mentions of types that the annotators looked for; only these are scored."""
    return [m for m in mentions if item.annotated is None or m.label in item.annotated]


def annotated_links(item: ScoredDocument, links: Iterable[Link]) -> list[Link]:
    """Return the links whose modifier is of a type that the annotators looked for."""
    return [link for link in links if item.annotated is None or link.modifier.label in item.annotated]
