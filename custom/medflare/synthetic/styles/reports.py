# SPDX-License-Identifier: Apache-2.0
"""Reports: the same findings written the way a given hospital writes, with the 14 codes of the text.

Given the style, the words follow from (finding, degree, side, zone); the style's `variety` lets a reporter
leave the habit now and then. Codes: 0 blank, 1 positive, 2 negative, 3 uncertain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.synthetic.findings import MILD, SEVERITIES, ChestFinding
from medflare.synthetic.styles.house import STYLES, HouseStyle
from medflare.synthetic.styles.layouts import LAYOUTS, ORGAN, RANK, Draft, Sentence
from medflare.synthetic.styles.schools import ABNORMAL, location, schools

__all__ = ["STYLES", "HouseStyle", "noun_phrase", "write_report"]


def write_report(
    findings: Sequence[ChestFinding], style: HouseStyle, rng: np.random.Generator
) -> tuple[str, tuple[int, ...]]:
    """Return the report of one study and its 14 codes.

    `findings` may hold resolved ones (change "resolved"), which are written as such and coded negative.
    """
    draft, codes = draft_report(findings, style, rng)
    return LAYOUTS[style.layout](draft), codes


def draft_report(
    findings: Sequence[ChestFinding], style: HouseStyle, rng: np.random.Generator
) -> tuple[Draft, tuple[int, ...]]:
    """Return the sentences of a report before they are put on the page, and the 14 codes of the text."""
    ordered = sorted(findings, key=lambda f: (RANK[f.condition], f.side, f.zone))
    codes = dict.fromkeys(CONDITIONS, Code.BLANK)
    for f in ordered:
        present = Code.UNCERTAIN if f.uncertain else Code.POSITIVE
        codes[f.condition] = Code.NEGATIVE if f.change == "resolved" else present
    absent = _mentioned(style, codes, len(findings))
    codes.update(dict.fromkeys(absent, Code.NEGATIVE))
    abnormal = (Code.POSITIVE, Code.UNCERTAIN)
    healthy = not any(codes[c] in abnormal for c in ABNORMAL if c != "support devices")
    codes["no finding"] = Code.POSITIVE if healthy else Code.BLANK
    frames = schools()[style.frames].frames
    draft = Draft(
        opening=style.opening,
        sentences=[_sentence(f, style, rng) for f in ordered],
        absent=[(ORGAN[c], schools()[style.words(c)].words[c].absent) for c in absent],
        negative=_choose(frames.negative, style, rng),
        normal=_choose(frames.normal, style, rng) if healthy else "",
    )
    return draft, tuple(int(codes[c]) for c in CONDITIONS)


def _mentioned(style: HouseStyle, codes: Mapping[str, Code], findings: int) -> Iterable[str]:
    """Return the absent conditions to mention: of organs with nothing to report, fewer the more findings."""
    described = {ORGAN[c] for c, code in codes.items() if code != Code.BLANK}
    absent = [c for c in style.negatives if codes[c] == Code.BLANK]
    kept = [c for c in absent if ORGAN[c] not in described or ORGAN[c] == "Pleura"]
    return sorted(kept[: max(2, len(style.negatives) - 2 * findings)], key=RANK.__getitem__)


def _choose(options: str, style: HouseStyle, rng: np.random.Generator) -> str:
    """Return the habitual wording, or with probability `variety` another one."""
    first, *others = options.split("|")
    leave, which = rng.random(2)
    return others[int(which * len(others))] if others and leave < style.variety else first


def noun_phrase(f: ChestFinding, style: HouseStyle, template: str, *, degree: bool = True) -> str:
    """Return a filled-in noun phrase without capital or stop; without `degree`, no {sev} or {size}."""
    words = style.words(f.condition)
    school = schools()[words]
    step = SEVERITIES.index(f.severity)
    two = f.side == "bilateral"
    side = "both" if two and words == "terse" else f.side
    text = template.format(
        sev=school.degrees[step] if degree else "",
        size=school.sizes[step] if degree else "",
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


def _sentence(f: ChestFinding, style: HouseStyle, rng: np.random.Generator) -> Sentence:
    frames, organ, words = schools()[style.frames].frames, ORGAN[f.condition], style.words(f.condition)
    template = _choose(schools()[words].words[f.condition].present, style, rng)
    frame = _choose(frames.uncertain if f.uncertain else frames.positive, style, rng)
    noun = noun_phrase(f, style, template, degree=not f.uncertain and f.change != "resolved")
    bare = re.sub(r"^an? ", "", noun)
    if f.change == "resolved":
        removed = f.condition == "support devices"
        text = frames.removed.format(bare=f.kind) if removed else frames.resolved.format(bare=bare)
        return Sentence(organ=organ, text=_capital(text))
    detail = schools()[words].details.get(f.condition, "") if f.extent >= MILD else ""
    text = frame.format(np=f"{noun}{detail}", bare=bare)
    if f.side == "bilateral" and re.search(r"(opacities|effusions|plaques)\b", noun):
        text = re.sub(r"\bis\b", "are", text, count=1)
    if f.change:
        text = f"{text[:-1]}, {frames.changes[f.change]}."
    summary = "" if f.condition == "support devices" else f"possible {bare}." if f.uncertain else f"{bare}."
    return Sentence(organ=organ, text=_capital(text), summary=_capital(summary), weight=f.extent)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
