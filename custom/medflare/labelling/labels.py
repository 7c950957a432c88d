# SPDX-License-Identifier: Apache-2.0
"""Labels of a report: 14 CheXpert conditions, each blank, positive, negative or uncertain.

`label_report` is a rule labeller with the classes and merge rules of the CheXpert labeler (Irvin et al.,
AAAI 2019); `chexbert_labels` runs CheXbert from local weights. Numbers and limits: docs/methods/labelling.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from medflare.core.conditions import CONDITIONS, Code
from medflare.labelling.chexbert import chexbert_labels
from medflare.labelling.negation import Status, negation_status, status_in
from medflare.labelling.rules import any_of, label_rules

__all__ = [
    "ConditionMention",
    "chexbert_labels",
    "label_report",
    "label_reports",
    "mentions_in",
    "negation_status",
    "sentence_spans",
    "sentences_of",
]

_INDEX = {condition: index for index, condition in enumerate(CONDITIONS)}
_NO_FINDING = _INDEX["no finding"]
_DEVICES = _INDEX["support devices"]
_CARDIOMEGALY = _INDEX["cardiomegaly"]
_EDEMA = _INDEX["edema"]
_EFFUSION = _INDEX["pleural effusion"]
_RANK = {Code.BLANK: 0, Code.NEGATIVE: 1, Code.UNCERTAIN: 2, Code.POSITIVE: 3}
_CODE = {Status.AFFIRMED: Code.POSITIVE, Status.NEGATED: Code.NEGATIVE, Status.POSSIBLE: Code.UNCERTAIN}


def _alternatives(patterns: Iterable[str], end: str = "") -> re.Pattern[str]:
    """Return one pattern of numbered groups; the word boundary is outside so that most places fail fast."""
    return re.compile(r"\b(?:" + "|".join(f"(?P<g{i}>{p})" for i, p in enumerate(patterns)) + ")" + end)


_RULES = label_rules()
_MENTION = _alternatives(any_of(rule.patterns) for rule in _RULES.mentions)
_STRUCTURE = _alternatives((any_of(rule.patterns) for rule in _RULES.structures), end=r"\b")
_PREDICATE = _alternatives(any_of(rule.patterns) for rule in _RULES.predicates)
_NORMALITY = re.compile(rf"\b(?:{any_of(_RULES.normality)})")
_SENTENCE_END = re.compile(
    r"(?<!\bvs)(?:(?<!\d)\.|\.(?!\d))|[!?;](?=\s|$)|\n\s*\n|\n(?=\s*(?:[-*•]|\d{1,2}[.)]))"
)
_CLAUSE_END = re.compile(
    r";|\b(?:but|however|although|though|which|while|whereas)\b|, (?=the |there |no |with )"
    r"|\band (?=the |there |no |lungs? |both )|(?:,|\band) (?=lungs?\b)|\bwith(?:out)?\b"
)
_SPACE = re.compile(r"\s+")
_REACH_BEFORE = 40
"""Characters before a structure in which an adjective is looked for."""


def label_report(text: str) -> tuple[int, ...]:
    """Return 14 values of Code in the order of CONDITIONS, of any text.

    Within a report positive wins over uncertain over negative over blank. "no finding" is positive when the
    report states normality: it denies a condition, calls a body part normal or has a phrase of `normality`,
    and no other condition than support devices is positive or uncertain. A report in which nothing is
    recognised has only blanks: it is not normal, it is unknown.
    """
    codes = [Code.BLANK] * len(CONDITIONS)
    states_normality = False
    for sentence in sentences_of(text):
        states_normality = states_normality or _NORMALITY.search(sentence) is not None
        for index, code, *_ in mentions_in(sentence):
            if _RANK[code] > _RANK[codes[index]]:
                codes[index] = code
    abnormal = any(code in (Code.POSITIVE, Code.UNCERTAIN) for code in codes[:_DEVICES])
    if not abnormal and (states_normality or Code.NEGATIVE in codes):
        codes[_NO_FINDING] = Code.POSITIVE
    return tuple(int(code) for code in codes)


def label_reports(texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Return `label_report` of each text."""
    return [label_report(text) for text in texts]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a report in lower case, with single blanks."""
    parts = _SENTENCE_END.split(text.lower())
    return [_SPACE.sub(" ", part).strip() for part in parts if part and not part.isspace()]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each sentence of a text, without blanks around it."""
    ends = [(0, 0), *(match.span() for match in _SENTENCE_END.finditer(text)), (len(text), len(text))]
    spans = []
    for (_, start), (end, _) in pairwise(ends):
        words = text[start:end]
        if words.strip():
            start += len(words) - len(words.lstrip())
            spans.append((start, start + len(words.strip())))
    return spans


class ConditionMention(NamedTuple):
    """A mention of CONDITIONS[condition] in a sentence, at `span` (start, end), with its code.

    `body_part` is true where it names no finding but a part, as in "the heart is enlarged".
    """

    condition: int
    code: Code
    span: tuple[int, int]
    body_part: bool = False


@lru_cache(maxsize=65536)
def mentions_in(sentence: str) -> tuple[ConditionMention, ...]:
    """Return every mention in a lower-case sentence."""
    mentions: list[ConditionMention] = []
    for match in _MENTION.finditer(sentence):
        conditions = _RULES.mentions[_group(match)].conditions
        if conditions:
            status = _CODE[status_in(sentence, match.span())]
            for condition in conditions:
                mentions += [
                    ConditionMention(i, code, match.span()) for i, code in _expand(condition, status)
                ]
    for match in _STRUCTURE.finditer(sentence):
        code = _structure_code(sentence, match.start(), match.end())
        if code != Code.BLANK:
            index = _INDEX[_RULES.structures[_group(match)].condition]
            mentions.append(ConditionMention(index, code, match.span(), body_part=True))
    return tuple(mentions)


def _expand(condition: str, code: Code) -> list[tuple[int, Code]]:
    """Return the conditions of a mention, also of heart failure, congestion or a blunted angle."""
    affirmed = code in (Code.POSITIVE, Code.UNCERTAIN)
    if condition == "heart failure":
        return [(_CARDIOMEGALY, Code.UNCERTAIN)] if affirmed else []
    if condition == "blunted angle":
        return [(_EFFUSION, Code.UNCERTAIN)] if affirmed else []
    if condition == "congestion":
        return [(_EDEMA, Code.UNCERTAIN if affirmed else code)]
    return [(_INDEX[condition], code)]


def _structure_code(sentence: str, start: int, end: int) -> Code:
    """Return the code of a body part by the nearest predicate: an adjective before it, else after it."""
    first = max(0, start - _REACH_BEFORE)
    adjectives = [
        m for m in _PREDICATE.finditer(sentence, first, start) if _adjoins(sentence[m.end() : start])
    ]
    if adjectives:
        codes = [_predicate_code(sentence, match) for match in adjectives]
        return Code.NEGATIVE if Code.NEGATIVE in codes else codes[-1]
    stop = _CLAUSE_END.search(sentence, end)
    after = _PREDICATE.search(sentence, end, stop.start() if stop else len(sentence))
    return _predicate_code(sentence, after) if after else Code.BLANK


def _adjoins(gap: str) -> bool:
    words = gap.split()
    return len(words) <= 3 and "," not in gap and not {"is", "are", "with"} & set(words)


def _predicate_code(sentence: str, match: re.Match[str]) -> Code:
    verdict = _RULES.predicates[_group(match)].verdict
    if verdict == "abnormal":
        return _CODE[status_in(sentence, match.span())]
    return Code.NEGATIVE if verdict == "normal" else Code.UNCERTAIN


def _group(match: re.Match[str]) -> int:
    assert match.lastgroup is not None
    return int(match.lastgroup[1:])
