# SPDX-License-Identifier: Apache-2.0
"""Errors that a reader of drafts asks for: findings missed, findings invented, and left taken for right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.predictions import Prediction
from medflare.labelling.labels import mentions_in, sentences_of

FINDINGS = tuple(name for name in CONDITIONS if name not in ("no finding", "support devices"))
_SIDE = re.compile(r"\b(left|right)\b")
_BOTH = re.compile(r"\b(?:bilateral(?:ly)?|both|each)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRate:
    """A share of `of` with its 95 % Wilson interval; studies count as independent.

    Attributes:
        count: those that have the error; of: those that could.
    """

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The share; None where there is nothing it could be of."""
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval."""
        if not self.of:
            return None
        found = binomtest(self.count, self.of).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingErrors:
    """Errors of drafts over some studies.

    Attributes:
        missed: of the findings that the references affirm, those that the draft does not.
        invented: of the findings that the drafts affirm, those that the reference does not.
        by_condition: condition -> (missed, of references that affirm it; invented, of drafts that do).
        swapped: of findings that both affirm on one side, those on opposite sides.
        unrecognised: of the references, those in which the labeller recognises nothing.
    """

    missed: FindingRate
    invented: FindingRate
    by_condition: dict[str, tuple[FindingRate, FindingRate]]
    swapped: FindingRate
    unrecognised: FindingRate


def finding_errors(items: Sequence[Prediction]) -> FindingErrors:
    """Return the errors of drafts against their references; uncertain counts as not affirmed."""
    by_condition = {}
    for name in FINDINGS:
        index = CONDITIONS.index(name)
        pairs = [
            (item.gold_codes[index] == Code.POSITIVE, item.predicted_codes[index] == Code.POSITIVE)
            for item in items
        ]
        missed = FindingRate(count=sum(a and not b for a, b in pairs), of=sum(a for a, _ in pairs))
        invented = FindingRate(count=sum(b and not a for a, b in pairs), of=sum(b for _, b in pairs))
        by_condition[name] = (missed, invented)
    sides = [(sides_of(item.reference), sides_of(item.generated)) for item in items]
    compared = [(gold[name], made[name]) for gold, made in sides for name in gold.keys() & made.keys()]
    return FindingErrors(
        missed=_total([missed for missed, _ in by_condition.values()]),
        invented=_total([invented for _, invented in by_condition.values()]),
        by_condition=by_condition,
        swapped=FindingRate(count=sum(gold != made for gold, made in compared), of=len(compared)),
        unrecognised=FindingRate(count=sum(not any(item.gold_codes) for item in items), of=len(items)),
    )


def sides_of(report: str) -> dict[str, str]:
    """Return condition -> "left" or "right", of the findings that a report affirms on one side alone.

    The side is the one that the sentence of the finding names; a sentence that names both, or calls the
    finding bilateral, and a finding that another sentence puts on the other side, have none.
    """
    found: dict[str, set[str]] = {}
    for sentence in sentences_of(report):
        named = set(_SIDE.findall(sentence))
        if _BOTH.search(sentence):
            named = {"left", "right"}
        for mention in mentions_in(sentence):
            if mention.code == Code.POSITIVE:
                found.setdefault(CONDITIONS[mention.condition], set()).update(named)
    return {name: next(iter(sides)) for name, sides in found.items() if len(sides) == 1}


def _total(rates: Sequence[FindingRate]) -> FindingRate:
    return FindingRate(count=sum(rate.count for rate in rates), of=sum(rate.of for rate in rates))
