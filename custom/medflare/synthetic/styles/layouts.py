# SPDX-License-Identifier: Apache-2.0
"""Layouts: how the sentences of a report are put on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ORGANS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Devices", ("support devices",)),
    ("Heart", ("cardiomegaly",)),
    ("Mediastinum", ("enlarged cardiomediastinum",)),
    ("Lungs", ("lung opacity", "lung lesion", "edema", "consolidation", "pneumonia", "atelectasis")),
    ("Pleura", ("pneumothorax", "pleural effusion", "pleural other")),
    ("Bones", ("fracture",)),
)
ORGAN = {condition: organ for organ, conditions in ORGANS for condition in conditions}
RANK = {condition: rank for rank, condition in enumerate(c for _, cs in ORGANS for c in cs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """The sentence about one finding."""

    organ: str
    text: str
    summary: str = ""  # how an impression repeats it; "" if it does not
    weight: float = 0.0  # what an impression names first


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Everything a layout arranges.

    Attributes:
        opening: first sentence or "".
        sentences: findings in the order of ORGANS.
        absent: (organ, text) of normal things; text ending in "." is a sentence, other a noun for a list.
        negative: frame with {list}; normal: the closing sentence, "" if there is something to report.
    """

    opening: str
    sentences: Sequence[Sentence]
    absent: Sequence[tuple[str, str]]
    negative: str
    normal: str

    def negatives(self, organ: str | None = None) -> list[str]:
        """Return normal statements (of one organ): whole sentences first, then all nouns in one list."""
        texts = [text for where, text in self.absent if organ in (None, where)]
        sentences = [t for t in texts if t.endswith(".")]
        nouns = [t for t in texts if not t.endswith(".")]
        if nouns:
            joined = " or ".join([", ".join(nouns[:-1]), nouns[-1]] if len(nouns) > 1 else nouns)
            sentences.append(self.negative.format(list=joined))
        return sentences

    def of(self, organ: str) -> list[str]:
        """Return all sentences about one organ."""
        return [s.text for s in self.sentences if s.organ == organ] + self.negatives(organ)

    def impression(self, most: int) -> str:
        """Return the `most` weightiest findings, or that there is none."""
        ranked = sorted((s for s in self.sentences if s.summary), key=lambda s: -s.weight)
        return self.normal or " ".join(s.summary for s in ranked[:most])


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _paragraph(d: Draft) -> str:
    return _join(d.opening, *(s.text for s in d.sentences), *d.negatives(), d.normal)


def _sections(d: Draft) -> str:
    body = [text for organ, _ in ORGANS for text in d.of(organ)]
    return _join("FINDINGS:", d.opening, *body, "IMPRESSION:", d.impression(2))


def _organs(d: Draft) -> str:
    rows = [f"{organ}: {' '.join(texts)}" for organ, _ in ORGANS if (texts := d.of(organ))]
    return _join(d.opening, *rows, f"Summary: {d.normal}" if d.normal else "")


def _numbered(d: Draft) -> str:
    body = [*(s.text for s in d.sentences), *d.negatives(), *filter(None, [d.normal])]
    return _join(d.opening, *(f"{number}. {text}" for number, text in enumerate(body, 1)))


def _letter(d: Draft) -> str:
    return _join(d.opening, *d.negatives(), *(s.text for s in d.sentences), "Conclusion:", d.impression(1))


LAYOUTS: Mapping[str, Callable[[Draft], str]] = {
    "paragraph": _paragraph,
    "sections": _sections,
    "organs": _organs,
    "numbered": _numbered,
    "letter": _letter,
}
