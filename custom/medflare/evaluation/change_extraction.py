# SPDX-License-Identifier: Apache-2.0
"""Changes of findings that a report states: better, worse, new, resolved or unchanged since the study before.

Rules on one sentence at a time: mentions of the 14 conditions and what is said of them come from the rule
labeller (docs/methods/labelling.md), words of change from change_words. A finding may have several changes,
for instance where left and right differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation import change_words as words
from medflare.labelling.labels import ConditionMention, mentions_in, sentences_of
from medflare.labelling.negation import Status, status_in

Change = Literal["better", "worse", "new", "resolved", "unchanged"]
CHANGES: tuple[Change, ...] = get_args(Change)
Changes = frozenset[tuple[int, Change]]
"""(index into CONDITIONS, change) of one report."""

FINDINGS = len(CONDITIONS) - 1
"""The conditions that can change: all but "no finding", which is the last."""


class ChangeCue(NamedTuple):
    """A word of change in a sentence."""

    change: Change
    start: int
    end: int


_PSEUDO = re.compile(rf"\b(?:{words.NOT_A_CHANGE})")
_CUE = re.compile(r"\b(?:" + "|".join(f"(?P<{change}>{pattern})" for change, pattern in words.CHANGES) + ")")
_SIZED = re.compile(r"\b(?:" + "|".join(f"(?P<{change}>{pattern})" for change, pattern in words.SIZED) + ")")
_COMPARED, _OVERALL = re.compile(words.COMPARED), re.compile(words.OVERALL)
_HAS, _NOT = re.compile(words.HAS), re.compile(words.NOT)
_DENIED = re.compile(r"\b(?:no|without|neither|nor)\b(?:(?!\band (?:the|there|a)\b).)*$")
_SEPARATES, _JOINS = re.compile(words.SEPARATES), re.compile(words.JOINS)
_CLAUSE = re.compile(r";|\b(?:but|however|although|though|while|whereas)\b|, (?=the |there |no )")


def changes_in(text: str) -> Changes:
    """Return every change that a report states; empty for a first study, and for any text without such words.

    A sentence about all findings ("no change from the prior study") speaks of those findings of the report
    that have no statement of their own.
    """
    stated: set[tuple[int, Change]] = set()
    present: set[int] = set()
    overall: set[Change] = set()
    for sentence in sentences_of(text):
        changes, findings, general = _sentence_changes(sentence)
        stated.update(changes)
        present.update(findings)
        overall.update(general)
    explicit = {condition for condition, _ in stated}
    if len(overall) == 1:
        stated.update((condition, change) for condition in present - explicit for change in overall)
    return frozenset(stated)


def changes_in_each(texts: Iterable[str]) -> list[Changes]:
    """Return `changes_in` of each text."""
    return [changes_in(text) for text in texts]


def changes_of_codes(before: Sequence[int], now: Sequence[int]) -> Changes:
    """Return new and resolved findings by two visits' 14 codes; codes do not know whether a finding grew.

    A doubtful finding (UNCERTAIN) at either visit is neither new nor resolved.
    """
    changes: set[tuple[int, Change]] = set()
    absent = (Code.BLANK, Code.NEGATIVE)
    for condition, (was, is_now) in enumerate(zip(before[:FINDINGS], now[:FINDINGS], strict=True)):
        if was in absent and is_now == Code.POSITIVE:
            changes.add((condition, "new"))
        if was == Code.POSITIVE and is_now in absent:
            changes.add((condition, "resolved"))
    return frozenset(changes)


@lru_cache(maxsize=65536)
def _sentence_changes(sentence: str) -> tuple[Changes, frozenset[int], frozenset[Change]]:
    """Return changes of findings, findings that are present, and changes of all, of a lower-case sentence."""
    mentions = [m for m in mentions_in(sentence) if m.condition < FINDINGS]
    silhouettes = [m for m in mentions if _is_silhouette(m, sentence)]
    known = [m for m in mentions if m not in silhouettes and m.code != Code.NEGATIVE]
    present = frozenset(m.condition for m in known)
    changes: set[tuple[int, Change]] = set()
    cues = find_cues(sentence)
    if not mentions:
        general = {cue.change for cue in cues} & {"unchanged", "better", "worse"}
        of_all = len(sentence.split()) <= words.LONGEST and _OVERALL.search(sentence)
        return frozenset(), present, frozenset(general if of_all else ())
    for start, end in _clauses(sentence):
        in_clause = [m for m in mentions if start <= m.span[0] < end]
        clause_cues = _outside([cue for cue in cues if start <= cue.start < end], in_clause)
        for mention in in_clause:
            if mention in silhouettes:  # "stable heart size" names no finding
                continue
            cue = _cue_of(mention, in_clause, clause_cues, sentence)
            if cue is not None and _fits(mention, cue, sentence):
                changes.add((mention.condition, cue.change))
    return frozenset(changes), present, frozenset()


def _is_silhouette(mention: ConditionMention, sentence: str) -> bool:
    """Return whether a body part is named and nothing abnormal of it, not even as a doubt."""
    vague = mention.body_part and mention.code == Code.UNCERTAIN
    return vague and status_in(sentence, mention.span) != Status.POSSIBLE


def _outside(cues: list[ChangeCue], mentions: Sequence[ConditionMention]) -> list[ChangeCue]:
    """Without words of a finding's name ("increase in heart size, unchanged") where others are there."""
    spans = [mention.span for mention in mentions]
    others = [cue for cue in cues if not any(first <= cue.start < last for first, last in spans)]
    return others or cues


def _clauses(sentence: str) -> list[tuple[int, int]]:
    edges = [0, *(match.start() for match in _CLAUSE.finditer(sentence)), len(sentence)]
    return list(pairwise(edges))


def _fits(mention: ConditionMention, cue: ChangeCue, sentence: str) -> bool:
    """Return whether a cue can be about a mention: absent findings only resolve, and not if denied before.

    The labeller takes "resolution of A" for absence, which "marked resolution of A" is not.
    """
    if mention.code != Code.NEGATIVE:
        return True
    if cue.start > mention.span[0] and _DENIED.search(sentence[: mention.span[0]]):
        return False
    return cue.change == "resolved" or (
        cue.change == "better" and "resolution" in sentence[cue.start : cue.end]
    )


def find_cues(sentence: str) -> list[ChangeCue]:
    """Return the words of change of a lower-case sentence, in order, with denials understood.

    Not worse and not better are unchanged, not resolved is unchanged, not new is nothing.
    """
    masked = _PSEUDO.sub(lambda match: "~" * len(match[0]), sentence)
    cues = [ChangeCue(_change_of(match), *match.span()) for match in _CUE.finditer(masked)]
    compared = _COMPARED.search(masked) is not None
    for match in _SIZED.finditer(masked):
        overlaps = any(cue.start < match.end() and match.start() < cue.end for cue in cues)
        if not overlaps and (compared or _HAS.search(masked[: match.start()])):
            cues.append(ChangeCue(_change_of(match), *match.span()))
    read = [_undenied(cue, masked) for cue in sorted(cues, key=lambda cue: cue.start)]
    return [cue for cue in read if cue is not None]


def _change_of(match: re.Match[str]) -> Change:
    return next(change for change in CHANGES if match.groupdict().get(change) is not None)


def _undenied(cue: ChangeCue, sentence: str) -> ChangeCue | None:
    if cue.change == "unchanged" or not _NOT.search(sentence[: cue.start]):
        return cue
    return None if cue.change == "new" else cue._replace(change="unchanged")


def _cue_of(
    mention: ConditionMention, mentions: Sequence[ConditionMention], cues: Sequence[ChangeCue], sentence: str
) -> ChangeCue | None:
    """Return the cue of a mention: its adjective, else one after it, else that of its neighbour."""
    adjective = _adjective(mention, cues, sentence)
    if adjective is not None:
        return adjective
    taken = [_adjective(other, cues, sentence) for other in mentions]
    free = [cue for cue in cues if cue not in taken]
    after = [cue for cue in free if cue.start >= mention.span[1]]
    if after:
        return after[0]
    before = [cue for cue in free if cue.end <= mention.span[0]]
    if before:
        return before[-1]
    for other in mentions:  # "increased atelectasis and effusion"
        shared = _adjective(other, cues, sentence)
        if shared is not None and _JOINS.search(sentence[other.span[1] : mention.span[0]]):
            return shared
    return None


def _adjective(mention: ConditionMention, cues: Sequence[ChangeCue], sentence: str) -> ChangeCue | None:
    """Return the nearest cue before a mention with nothing but describing words between them."""
    near = [cue for cue in cues if cue.start < mention.span[1] and cue.start <= mention.span[0]]
    if not near:
        return None
    between = sentence[near[-1].end : mention.span[0]]
    return None if _SEPARATES.search(between) or len(between.split()) > 6 else near[-1]
