# SPDX-License-Identifier: Apache-2.0
"""House styles: the same findings written as a report the way a given hospital writes, with their 14 codes.

A `HouseStyle` picks a vocabulary for every condition, the sentences around it, a layout and the normal things
the house always mentions. Given the style, the words follow from (finding, degree, side, zone); a small
`variety` lets a reporter leave the habit. Codes are those of the text: 0 blank, 1 positive, 2 negative,
3 uncertain (algorithms.md 2.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from medflare.cohort.records import CONDITIONS, Code

from ..findings import SEVERITIES, Finding
from .lexicon import ABNORMAL, DEGREES, FRAMES, VOCABULARIES, location

ORGANS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Devices", ("support devices",)),
    ("Heart", ("cardiomegaly",)),
    ("Mediastinum", ("enlarged cardiomediastinum",)),
    ("Lungs", ("lung opacity", "lung lesion", "edema", "consolidation", "pneumonia", "atelectasis")),
    ("Pleura", ("pneumothorax", "pleural effusion", "pleural other")),
    ("Bones", ("fracture",)),
)
_ORGAN = {condition: organ for organ, conditions in ORGANS for condition in conditions}
_RANK = {condition: rank for rank, condition in enumerate(c for _, cs in ORGANS for c in cs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseStyle:
    """How one hospital writes.

    Attributes:
        name: for captions and manifests.
        frames: key of FRAMES; layout: key of LAYOUTS.
        vocabulary: key of VOCABULARIES, used for every condition not named in `borrowed`.
        borrowed: condition -> other vocabulary.
        negatives: absent conditions this house always mentions, in the order of ORGANS when written.
        opening: fixed first sentence, "" for none.
        variety: probability that a reporter leaves the habitual wording of one sentence.
    """

    name: str
    frames: str
    vocabulary: str
    layout: str
    negatives: tuple[str, ...]
    borrowed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    opening: str = ""
    variety: float = 0.12

    def __post_init__(self) -> None:
        choices: list[tuple[str, str, Iterable[str]]] = [
            ("frames", self.frames, FRAMES),
            ("layout", self.layout, LAYOUTS),
            *(("vocabulary", words, VOCABULARIES) for words in (self.vocabulary, *self.borrowed.values())),
        ]
        for key, value, table in choices:
            if value not in table:
                raise ValueError(f"style {self.name!r}: {key} is {value!r}; choose one of {', '.join(table)}")
        if unknown := sorted({*self.negatives, *self.borrowed} - set(ABNORMAL)):
            known = ", ".join(ABNORMAL)
            raise ValueError(f"style {self.name!r}: {unknown} are not conditions; choose from {known}")

    def words(self, condition: str) -> str:
        """The vocabulary this house uses for a condition."""
        return self.borrowed.get(condition, self.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    organ: str
    text: str
    summary: str = ""  # how an impression repeats it; "" if it does not
    weight: float = 0.0  # what an impression names first


def write_report(
    findings: Sequence[Finding], style: HouseStyle, rng: np.random.Generator
) -> tuple[str, tuple[int, ...]]:
    """The report of one study and its 14 codes.

    `findings` may hold resolved ones (change "resolved"), which are written as such and coded negative.
    """
    codes = dict.fromkeys(CONDITIONS, Code.BLANK)
    sentences = []
    for f in sorted(findings, key=lambda f: (_RANK[f.condition], f.side, f.zone)):
        said = Code.UNCERTAIN if f.uncertain else Code.POSITIVE
        code = Code.NEGATIVE if f.change == "resolved" else said
        sentences.append(_sentence(f, style, rng))
        if codes[f.condition] != Code.POSITIVE:
            codes[f.condition] = code
    absent = [c for c in style.negatives if codes[c] == Code.BLANK]
    codes.update(dict.fromkeys(absent, Code.NEGATIVE))
    abnormal = {Code.POSITIVE, Code.UNCERTAIN}
    healthy = not any(codes[c] in abnormal for c in ABNORMAL if c != "support devices")
    codes["no finding"] = Code.POSITIVE if healthy else Code.BLANK
    text = LAYOUTS[style.layout](sentences, absent, style, healthy)
    return text, tuple(int(codes[c]) for c in CONDITIONS)


def noun_phrase(f: Finding, style: HouseStyle, *, pick: int = 0, degree: bool = True) -> str:
    """The finding in the words of the house, no capital, no stop; without `degree`, no {sev} or {size}."""
    words = style.words(f.condition)
    options = VOCABULARIES[words][f.condition][0].split("|")
    severity, size = DEGREES[words]
    step = SEVERITIES.index(f.severity)
    two = f.side == "bilateral"
    side = "both" if two and words == "terse" else f.side
    text = options[pick % len(options)].format(
        sev=severity[step] if degree else "",
        size=size[step] if degree else "",
        a="" if two else "a ",
        side=side,
        loc=location(words, f.side, f.zone) if f.zone else "",
        s="s" if two else "",
        y="ies" if two else "y",
        kind=f.kind,
    )
    text = re.sub(r",\s*(?=$)", "", re.sub(r"\s+", " ", text)).strip()
    text = text.replace("on the bilateral", "on both sides").replace("the bilateral", "both")
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def _sentence(f: Finding, style: HouseStyle, rng: np.random.Generator) -> Sentence:
    frames = FRAMES[style.frames]
    pick = int(rng.random() < style.variety)
    odd = int(rng.random() < style.variety)
    organ = _ORGAN[f.condition]
    noun = noun_phrase(f, style, pick=pick, degree=not f.uncertain and f.change != "resolved")
    bare = re.sub(r"^an? ", "", noun)
    if f.change == "resolved":
        if f.condition == "support devices":
            return Sentence(organ=organ, text=_tidy(frames.removed.format(bare=f.kind)))
        return Sentence(organ=organ, text=_tidy(frames.resolved.format(bare=bare)))
    options = (frames.uncertain if f.uncertain else frames.positive).split("|")
    text = options[odd % len(options)].format(np=noun, bare=bare)
    if f.side == "bilateral" and re.search(r"(opacities|effusions|plaques)\b", noun):
        text = re.sub(r"\bis\b", "are", text, count=1)
    if f.change:
        text = f"{text[:-1]}, {frames.changes[f.change]}."
    summary = "" if f.condition == "support devices" else f"possible {bare}." if f.uncertain else f"{bare}."
    return Sentence(organ=organ, text=_tidy(text), summary=_tidy(summary), weight=f.extent)


def _tidy(text: str) -> str:
    return text[:1].upper() + text[1:]


def _negatives(absent: Sequence[str], style: HouseStyle) -> list[str]:
    """Normal statements: whole sentences first, then all nouns in one list."""
    texts = [VOCABULARIES[style.words(c)][c][1] for c in sorted(absent, key=_RANK.__getitem__)]
    nouns = [t for t in texts if not t.endswith(".")]
    whole = [t for t in texts if t.endswith(".")]
    if nouns:
        joined = " or ".join([", ".join(nouns[:-1]), nouns[-1]] if len(nouns) > 1 else nouns)
        whole.append(FRAMES[style.frames].negative.format(list=joined))
    return whole


def _paragraph(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle, healthy: bool) -> str:
    body = [s.text for s in sentences] + _negatives(absent, style)
    return " ".join(
        [*filter(None, [style.opening]), *body, *([FRAMES[style.frames].normal] if healthy else [])]
    )


def _sections(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle, healthy: bool) -> str:
    body = [style.opening, *_by_organ(sentences, absent, style)]
    return f"FINDINGS: {' '.join(filter(None, body))} IMPRESSION: {_impression(sentences, style, healthy)}"


def _by_organ(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle) -> list[str]:
    rows = []
    for organ, conditions in ORGANS:
        rows += [s.text for s in sentences if s.organ == organ]
        rows += _negatives([c for c in absent if c in conditions], style)
    return rows


def _organs(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle, healthy: bool) -> str:
    rows = [style.opening] if style.opening else []
    for organ, conditions in ORGANS:
        said = [s.text for s in sentences if s.organ == organ]
        said += _negatives([c for c in absent if c in conditions], style)
        if said:
            rows.append(f"{organ}: {' '.join(said)}")
    return " ".join([*rows, *([f"Summary: {FRAMES[style.frames].normal}"] if healthy else [])])


def _numbered(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle, healthy: bool) -> str:
    body = [s.text for s in sentences] + _negatives(absent, style)
    body += [FRAMES[style.frames].normal] if healthy else []
    rows = " ".join(f"{number}. {text}" for number, text in enumerate(body, 1))
    return f"{style.opening} {rows}".strip()


def _letter(sentences: Sequence[Sentence], absent: Sequence[str], style: HouseStyle, healthy: bool) -> str:
    body = [*filter(None, [style.opening]), *_negatives(absent, style), *(s.text for s in sentences)]
    return f"{' '.join(body)} Conclusion: {_impression(sentences, style, healthy, most=1)}"


def _impression(sentences: Sequence[Sentence], style: HouseStyle, healthy: bool, most: int = 2) -> str:
    """The `most` weightiest findings, or that there is none."""
    if healthy:
        return FRAMES[style.frames].normal
    ranked = sorted((s for s in sentences if s.summary), key=lambda s: -s.weight)
    return " ".join(s.summary for s in ranked[:most])


Layout = Callable[[Sequence[Sentence], Sequence[str], HouseStyle, bool], str]
LAYOUTS: Mapping[str, Layout] = {
    "paragraph": _paragraph,
    "sections": _sections,
    "organs": _organs,
    "numbered": _numbered,
    "letter": _letter,
}

_CORE = ("cardiomegaly", "consolidation", "pneumothorax", "pleural effusion")
STYLES: Mapping[str, HouseStyle] = {
    style.name: style
    for style in (
        HouseStyle(
            name="prose",
            frames="american",
            vocabulary="american",
            layout="paragraph",
            negatives=(*_CORE, "edema", "enlarged cardiomediastinum"),
        ),
        HouseStyle(
            name="telegraphic",
            frames="terse",
            vocabulary="terse",
            layout="paragraph",
            opening="PA chest.",
            negatives=(*_CORE, "edema", "fracture", "lung lesion", "pleural other"),
        ),
        HouseStyle(
            name="sectioned",
            frames="academic",
            vocabulary="academic",
            layout="sections",
            negatives=(
                "enlarged cardiomediastinum",
                "pneumothorax",
                "pleural effusion",
                "lung opacity",
                "fracture",
            ),
        ),
        HouseStyle(
            name="structured",
            frames="itemised",
            vocabulary="itemised",
            layout="organs",
            negatives=(*_CORE, "enlarged cardiomediastinum", "lung opacity", "fracture"),
        ),
        HouseStyle(
            name="british",
            frames="british",
            vocabulary="british",
            layout="letter",
            opening="This is a frontal radiograph of the chest.",
            negatives=("cardiomegaly", "consolidation", "pneumothorax", "pleural effusion", "lung lesion"),
        ),
        HouseStyle(
            name="continental",
            frames="continental",
            vocabulary="continental",
            layout="numbered",
            opening="Chest in one plane.",
            negatives=(*_CORE, "edema", "atelectasis"),
        ),
        HouseStyle(
            name="registrar",
            frames="american",
            vocabulary="british",
            layout="numbered",
            opening="Frontal chest radiograph.",
            borrowed={
                "cardiomegaly": "itemised",
                "pleural effusion": "itemised",
                "edema": "american",
                "consolidation": "american",
                "lung lesion": "american",
                "fracture": "american",
            },
            negatives=("cardiomegaly", "pneumothorax", "pleural effusion", "edema", "pneumonia"),
        ),
    )
}
