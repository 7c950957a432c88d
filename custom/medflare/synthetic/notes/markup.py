# SPDX-License-Identifier: Apache-2.0
"""Marked-up text to a text with entities and relations.

`[problem a|her [bodyloc >a|left knee] pain]` is a head with the key a and, inside, a modifier of it.
`[negation >a,b|denies]` is one modifier of two heads. Fragments that name the same head are one entity:
`[problem a,b|pain in the] [problem a|wrist] and [problem b|ankle]` makes the second one discontinuous.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from medflare.data.records import Entity, Relation

RELATION = "hasAttr"
_OPEN = re.compile(r"\[([a-z_]+) (>?)([^|\[\]]+)\|")
_ARTICLE = re.compile(r"\b([Aa])\(n\) ((?:\[[^|\[\]]*\|)*)([\w-]+)")
_SPOKEN = re.compile(
    r"(?!HIDA|MIBI)([aeioAEIO][a-z]|u[lnmrp][^i]|[AEFHILMNORSX](?![a-z])[A-Z0-9-]|8\d?(?!\d)|1[18](?!\d)|x-|[aeio]\b)"
)


@dataclass(slots=True)
class _Mark:
    label: str
    heads: tuple[str, ...] = ()
    shared: bool = False  # whether a fragment belongs to another entity as well
    spans: list[tuple[int, int]] = field(default_factory=list)


def parse(markup: str) -> tuple[str, tuple[Entity, ...], tuple[Relation, ...]]:
    """Return the text, entities T1, T2 ... in the order of the text and the relations between them.

    Raises:
        ValueError: brackets do not match, two entities have one key, or a modifier names a head that the text
            does not have.
    """
    text, marks = _scan(_ARTICLE.sub(_article, markup))
    for mark in marks.values():
        if len(mark.spans) > 1 and not mark.shared:
            raise ValueError(f"two entities have the same key: {[text[slice(*s)] for s in mark.spans]}")
        mark.spans = _joined(mark.spans, text)
    order = sorted(marks, key=lambda key: (marks[key].spans[0][0], -marks[key].spans[-1][1], key))
    names = {key: f"T{number + 1}" for number, key in enumerate(order)}
    entities = tuple(
        Entity(entity_id=names[key], label=marks[key].label, spans=tuple(marks[key].spans)) for key in order
    )
    relations = []
    for key in order:
        if unknown := set(marks[key].heads) - set(names):
            raise ValueError(
                f"{marks[key].label} names the heads {sorted(unknown)}, which are not in: {text}"
            )
        relations += [Relation(label=RELATION, head=names[h], tail=names[key]) for h in marks[key].heads]
    return text, entities, tuple(relations)


def _scan(markup: str) -> tuple[str, dict[str, _Mark]]:
    """Return the bare text, and per key the fragments in it; a modifier's key is its place in the markup."""
    out: list[str] = []
    length, at = 0, 0
    marks: dict[str, _Mark] = {}
    stack: list[tuple[tuple[str, ...], int]] = []
    while at < len(markup):
        if opening := _OPEN.match(markup, at):
            label, arrow, names = opening.groups()
            listed = tuple(names.split(","))
            keys = (f"#{at:06d}",) if arrow else listed
            for key in keys:
                mark = marks.setdefault(key, _Mark(label, listed if arrow else ()))
                mark.shared = mark.shared or (len(keys) > 1)
            stack.append((keys, length))
            at = opening.end()
        elif markup[at] == "]":
            if not stack:
                raise ValueError(f"a bracket closes that was not opened: {markup}")
            keys, start = stack.pop()
            for key in keys:
                marks[key].spans.append((start, length))
            at += 1
        else:
            out.append(markup[at])
            length += 1
            at += 1
    if stack:
        raise ValueError(f"{len(stack)} brackets stay open: {markup}")
    return "".join(out), marks


def _joined(spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Return fragments in order, those with nothing but blanks between them as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and not text[joined[-1][1] : start].strip():
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _article(match: re.Match[str]) -> str:
    article, marks, word = match.groups()
    return f"{article}{'n' if _SPOKEN.match(word) else ''} {marks}{word}"
