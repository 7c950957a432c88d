# SPDX-License-Identifier: Apache-2.0
"""Report text: two sets of cleaning rules, the findings section of a free report, tokens for metrics.

`r2gen` reproduces the normalisation that published numbers were scored with, faults included
(Chen et al., "Generating Radiology Reports via Memory-driven Transformer", EMNLP 2020,
and PromptMRG, which inherits it). `clean` is what a person would want to read. Score with both.
"""

from __future__ import annotations

import re
from typing import Literal

Rules = Literal["clean", "r2gen"]
RULES: tuple[Rules, ...] = ("clean", "r2gen")


def clean_report(text: str, rules: Rules = "clean") -> str:
    """Return `text` after one of the two sets of rules; the empty string where nothing is left.

    Args:
        rules: "clean" keeps case and punctuation and drops layout: whitespace, de-identification marks
            (`XXXX`, `___`, `[** **]`), list numbers, section headings, signatures.
            "r2gen" gives lower-cased sentences joined by " . ", see `_r2gen`.

    Raises:
        ValueError: an unknown name of rules.
    """
    if rules == "clean":
        return _clean(text)
    if rules == "r2gen":
        return _r2gen(text)
    raise ValueError(f"text rules '{rules}' do not exist; choose one of: {', '.join(RULES)}.")


# --------------------------------------------------------------------------------------------- R2Gen

_R2GEN_REMOVED = re.compile(r"""["'/\\]|[.,?;*!%^&_+():-\[\]{}]""")
"""R2Gen meant to remove hyphens, but inside the class `:-[` is a range: `:;<=>?@A-Z[` go, `-` stays."""


def _r2gen(text: str) -> str:
    """Clean a report as R2Gen does for MIMIC-CXR, which for IU X-Ray gives the same words.

    Quirks that are kept because they change BLEU: hyphens survive; a list number is only recognised from
    1 to 5 and "1. " is deleted wherever it stands (also in "grade 1. "); empty sentences are not dropped,
    so a trailing ". " or a lone list number leaves " .  ." (the published test compares a string with a
    list, which is always unequal). Whitespace inside is left as it falls: split on whitespace to score.
    An empty text becomes " .", as there.
    """
    text = text.replace("\n", " ")
    for pair in ("__", "  ", ".."):
        for _ in range(8):
            text = text.replace(pair, pair[0])
    text = text.replace("1. ", "")
    for number in "2345":
        text = text.replace(f". {number}. ", ". ")
    for number in "2345":
        text = text.replace(f" {number}. ", ". ")
    sentences = text.strip().lower().split(". ")
    return " . ".join(_R2GEN_REMOVED.sub("", sentence.strip()) for sentence in sentences) + " ."


# --------------------------------------------------------------------------------------------- clean

_MASK = re.compile(r"\[\*\*.*?\*\*\]|_{2,}|\b[xX]{3,}\b(?:-[xX]{3,}\b)*", re.DOTALL)
_SIGNATURE = re.compile(
    r"(?im)^[ \t]*(?:electronically signed|dictated (?:by|and)|signed by|transcribed by|final report$"
    r"|report (?:approved|reviewed) by|reviewed and (?:approved|electronically)).*$"
)
_HEADING_WORDS = (
    r"findings?(?: and impressions?)?|impressions?|conclusions?|comparisons?|indications?|techniques?"
    r"|clinical (?:history|information|indication)|history|examinations?|exam|reason for (?:exam|examination)"
    r"|recommendations?|notifications?|wet read|procedure|study|opinion|interpretation|report"
)
_HEADING_INLINE = re.compile(rf"(?im)(?:^|(?<=[.!?])\s)[ \t]*(?:{_HEADING_WORDS})[ \t]*:")
_LIST_NUMBER = re.compile(r"(?m)(?:^|(?<=[.!?:])\s+)\(?\d{1,2}[.)](?=\s|[A-Za-z]|$)")
_BULLET = re.compile(r"(?m)^[ \t]*[-*•]+[ \t]+")
_SPACE = re.compile(r"\s+")
_SPACE_BEFORE_POINT = re.compile(r"\s+([.,;:!?)])")
_POINTS = re.compile(r"([.,;:])(?:\s*[.,;:])+")


def count_masks(text: str) -> int:
    """Return how many de-identification marks (`XXXX`, `___`, `[** **]`) a text has."""
    return len(_MASK.findall(text))


def _clean(text: str) -> str:
    """Return the text without layout; words and punctuation are kept."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _SIGNATURE.sub(" ", text)
    text = _HEADING_INLINE.sub("\n", text)
    text = _MASK.sub(" ", text)
    text = _BULLET.sub("", text)
    text = _LIST_NUMBER.sub(" ", text)
    text = _SPACE.sub(" ", text)
    text = _SPACE_BEFORE_POINT.sub(r"\1", text)
    text = _POINTS.sub(r"\1", text)
    return text.strip(" ,;:-").removeprefix(". ").strip()


# -------------------------------------------------------------------------------------------- tokens

_JAPANESE = r"[\u3005\u3400-\u4dbf\u4e00-\u9fff]+|[\u3041-\u309f]+|[\u30a1-\u30ff\uff66-\uff9f]+"
"""Runs of kanji, of hiragana and of katakana: Japanese is written without blanks, and its scripts change
where most words end."""
_LETTER = r"[^\W\u3005\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f]"
_TOKEN = re.compile(rf"\d+(?:[.,]\d+)+|{_JAPANESE}|{_LETTER}+(?:['’-]{_LETTER}+)*|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Return lower-cased words and single punctuation marks; decimals and hyphenated words stay whole.

    Japanese is cut where kanji, hiragana and katakana change (TAR-16): no dictionary is needed, and the same
    text is cut alike everywhere. Scores of it compare with those of the same cut alone.
    """
    return _TOKEN.findall(text.lower())
