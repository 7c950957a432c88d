# SPDX-License-Identifier: Apache-2.0
"""The words of the rule labeller, from rules.yaml: what mentions a condition, and what denies or doubts it.

Classes follow the CheXpert labeler (Irvin et al., AAAI 2019); cues follow NegEx (Chapman et al. 2001).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from medflare.core.config import Settings, read_package_data

Alternatives = tuple[str, ...]
"""Alternatives, regular expressions on one lower-case sentence."""


class MentionRule(Settings):
    """Patterns that mention conditions; no condition for what only looks like a mention."""

    conditions: tuple[str, ...]
    patterns: Alternatives


class StructureRule(Settings):
    """Patterns of a body part whose condition is stated by a predicate."""

    condition: str
    patterns: Alternatives


class PredicateRule(Settings):
    """Patterns that say how a body part is."""

    verdict: Literal["normal", "abnormal", "unsure"]
    patterns: Alternatives


class LabelRules(Settings):
    """One field for each top-level key of rules.yaml, which says what each is for."""

    mentions: tuple[MentionRule, ...]
    structures: tuple[StructureRule, ...]
    predicates: tuple[PredicateRule, ...]
    normality: Alternatives
    pseudo_cues: Alternatives
    pre_uncertain_cues: Alternatives
    post_uncertain_cues: Alternatives
    narrow_uncertain_cues: Alternatives
    pre_negation_cues: Alternatives
    post_negation_cues: Alternatives
    terminators: Alternatives
    finite_verbs: Alternatives


@lru_cache(maxsize=1)
def label_rules() -> LabelRules:
    """Return the rules, read once."""
    return read_package_data(LabelRules, Path(__file__).with_name("rules.yaml"))


def any_of(patterns: Iterable[str]) -> str:
    """Return one regular expression that matches any of the patterns, the first one that fits."""
    return "|".join(patterns)
