# SPDX-License-Identifier: Apache-2.0
"""Is a phrase of a clinical sentence affirmed, denied or doubted?

The scheme is NegEx's (Chapman et al., J Biomed Inform 2001;34:301): cues reach forward or backward until a
stop, pseudo-cues hold a negation word and deny nothing. Added for radiology: reach across "A, B or C" lists,
stops before a fresh statement after a comma, doubt as a third answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from medflare.labelling.rules import any_of, label_rules


class Status(Enum):
    """Statement of a sentence about a phrase in it."""

    AFFIRMED = "affirmed"
    NEGATED = "negated"
    POSSIBLE = "possible"


class Cue(NamedTuple):
    """A cue's place in the sentence."""

    start: int
    end: int


class Cues(NamedTuple):
    """Cues of one sentence, each kind in the order of the text."""

    pre_negation: tuple[Cue, ...]
    post_negation: tuple[Cue, ...]
    pre_uncertain: tuple[Cue, ...]
    post_uncertain: tuple[Cue, ...]
    either: tuple[Cue, ...]
    stops: tuple[Cue, ...]


def _word(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w/])(?:{any_of(patterns)})")


_RULES = label_rules()
_ANY = re.compile(
    r"no|n't|w/o|without|never|den|absen|lack|negativ|-ve|fail|resol|disappear|clear|remov|drain|evac|rule|rather"
    r"|instead|likely|incons|exclu|visuali|can|unable|free|void|possib|may|might|could|susp|quest|concern|worri"
    r"|presum|prob|perhaps|suggest|differen|consid|favo|equiv|potent|r/o|evaluat|assess|versus|vs|and/or|correl"
    r"|symptom|would|if|appear|poorly|raise|sensitive|identify|\?|\bor\b|declin|resorb"
)
"""One cheap look: a sentence without any of these has no cue at all."""
_PSEUDO = _word(_RULES.pseudo_cues)
_PRE_UNCERTAIN = _word(_RULES.pre_uncertain_cues)
_POST_UNCERTAIN = re.compile(rf"(?<!\w)(?:{any_of(_RULES.post_uncertain_cues)})")
_PRE_NEGATION = re.compile(rf"(?<!\w)(?:{any_of(_RULES.pre_negation_cues)})\b")
_POST_NEGATION = re.compile(rf"(?:(?<!\w)|(?=[:=-]))(?:{any_of(_RULES.post_negation_cues)})")
_EITHER = _word(_RULES.narrow_uncertain_cues)
_STOP = re.compile(any_of(_RULES.terminators))
_FINITE = re.compile(any_of(_RULES.finite_verbs))
_NEIGHBOUR_WORDS = 4


def negation_status(sentence: str, span: tuple[int, int]) -> Status:
    """Return what `sentence` says of its part `span` (start, end), in any case of letters.

    A denial wins over a doubt ("no opacity to suggest pneumonia"); a doubted denial is a doubt ("cannot be
    excluded").
    """
    return status_in(sentence.lower(), span)


def status_in(sentence: str, span: tuple[int, int]) -> Status:
    """Return `negation_status` of a sentence that is already in lower case."""
    cues = find_cues(sentence)
    if cues is None:
        return Status.AFFIRMED
    start, end = span
    # The order is the rule: a denial before the phrase is the most reliable sign, then one behind it; a doubt
    # counts only where nothing is denied, because doubtful denials were taken out of the cues before
    # (`_undoubted`).
    if any(_reaches_forward(cue, start, end, cues) for cue in cues.pre_negation):
        return Status.NEGATED
    if any(_reaches_back(sentence, cue, end, cues) for cue in cues.post_negation):
        return Status.NEGATED
    if any(_reaches_forward(cue, start, end, cues) for cue in cues.pre_uncertain):
        return Status.POSSIBLE
    if any(_reaches_back(sentence, cue, end, cues) for cue in cues.post_uncertain):
        return Status.POSSIBLE
    if any(_is_neighbour(sentence, cue, start, end, cues) for cue in cues.either):
        return Status.POSSIBLE
    return Status.AFFIRMED


def _stopped(cues: Cues, left: int, right: int) -> bool:
    return any(left <= stop.start and stop.end <= right for stop in cues.stops)


def _reaches_forward(cue: Cue, start: int, end: int, cues: Cues) -> bool:
    # A cue may overlap the beginning of the phrase ("without" of "without effusion" marked as a whole), but
    # not reach beyond its end.
    return cue.start <= start and cue.end <= end and not _stopped(cues, cue.end, start)


def _reaches_back(sentence: str, cue: Cue, end: int, cues: Cues) -> bool:
    if cue.start < end or _stopped(cues, end, cue.start):
        return False
    # In "opacity is stable, effusion not seen" the verb between shows that "not seen" is of the next phrase.
    return _FINITE.search(sentence, end, cue.start) is None


def _is_neighbour(sentence: str, cue: Cue, start: int, end: int, cues: Cues) -> bool:
    left, right = (end, cue.start) if end <= cue.start else (cue.end, start)
    between = sentence[left:right]
    return left <= right and "," not in between and len(between.split()) <= _NEIGHBOUR_WORDS


@lru_cache(maxsize=65536)
def find_cues(sentence: str) -> Cues | None:
    """Return the cues of a lower-case sentence, None if it has none. Cached: reports repeat themselves."""
    if not _ANY.search(sentence):
        return None
    # Pseudo-cues are overwritten and not deleted, so that all offsets stay those of the sentence.
    masked = _PSEUDO.sub(lambda match: "~" * len(match[0]), sentence)
    pre_uncertain = _find(_PRE_UNCERTAIN, masked)
    post_uncertain = _find(_POST_UNCERTAIN, masked)
    doubts = pre_uncertain + post_uncertain
    return Cues(
        _undoubted(_find(_PRE_NEGATION, masked), doubts),
        _undoubted(_find(_POST_NEGATION, masked), doubts),
        pre_uncertain,
        post_uncertain,
        () if "~" in masked else _find(_EITHER, masked),  # "with or without" leaves nothing open
        _find(_STOP, masked),
    )


def _find(pattern: re.Pattern[str], sentence: str) -> tuple[Cue, ...]:
    return tuple(Cue(*match.span()) for match in pattern.finditer(sentence))


def _undoubted(denials: tuple[Cue, ...], doubts: tuple[Cue, ...]) -> tuple[Cue, ...]:
    """Return the denials that are not part of a doubt: "cannot be excluded" denies nothing."""
    return tuple(c for c in denials if not any(d.start <= c.start < d.end for d in doubts))
