# SPDX-License-Identifier: Apache-2.0
"""Tolerant parser of a language model's answer in lines `head | relation | tail`.

Nothing is believed that the text does not name: a triple whose head or tail is not in the chunk is left out
and counted, and so is a relation that is none of ours.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

from medflare.knowledge.rule_extraction import PATIENT, RELATIONS, RULES, STATED
from medflare.knowledge.triples import Triple, canonical
from medflare.knowledge.vocabulary import words_of

KNOWN: tuple[str, ...] = (*RELATIONS, *STATED.values())
"""Relations of the rules, and what is said of a patient: those two kinds of extraction can be compared."""
_DENYING = frozenset({"not", "no", "never", "non", "without"})
NEAR = 0.8
"""Least similarity of letters (difflib) at which a relation counts as a known one."""
_BULLET = re.compile(r"^\s*(?:[-*•]+|\(?\d+[.)])\s*")
_NOTHING = {"none", "no triples", "nothing", "n/a"}

MALFORMED, RELATION, ABSENT, SELF = "malformed line", "unknown relation", "not in the text", "says nothing"


@cache
def known_relation(words: str) -> tuple[str, bool] | None:
    """Return (our relation, whether head and tail change places) for a wording of it; None for none of ours.

    A known name first, then the words of the rules ("is due to" is `causes`, turned), then similar letters,
    unless one of the two denies: "not associated with" is no "associated with".
    """
    name = canonical(words.replace("_", " "))
    if name in KNOWN:
        return name, False
    for rule in RULES:
        if rule.pattern.fullmatch(name):
            return rule.relation, rule.turned
    alike = [known for known in KNOWN if _denial(known) == _denial(name)]
    near = difflib.get_close_matches(name, alike, n=1, cutoff=NEAR)
    return (near[0], False) if near else None


def _denial(words: str) -> bool:
    return not _DENYING.isdisjoint(words.split())


def named_in(chunk: str) -> Callable[[str], bool]:
    """Return whether a name stands in a chunk word by word, in any case, accent or plural."""
    words = "\0".join(word for word, _, _ in words_of(chunk))
    text = f"\0{words}\0"

    def stands(name: str) -> bool:
        wanted = "\0".join(word for word, _, _ in words_of(name))
        return bool(wanted) and f"\0{wanted}\0" in text

    return stands


def read_answer(
    answer: str, chunk: str, faults: Counter[str], *, of_patient: bool = True
) -> Iterator[tuple[Triple, int, int]]:
    """Yield (triple, where its line begins and ends in the answer) of every line that can be believed.

    Bullets, numbers, pipes and brackets around a line are forgiven.

    Args:
        faults: counts of what was left out, added to.
        of_patient: whether the chunk speaks of a patient; a head "patient" need not be in it then (DD-13).
    """
    stands, start = named_in(chunk), 0
    for line in answer.split("\n"):
        end = start + len(line)
        triple = _triple(line, stands, of_patient, faults)
        if triple is not None:
            yield triple, start, end
        start = end + 1


def _triple(
    line: str, stands: Callable[[str], bool], of_patient: bool, faults: Counter[str]
) -> Triple | None:
    bare = _BULLET.sub("", line).strip().strip("|()[]<>").strip()
    if not bare or canonical(bare) in _NOTHING:
        return None
    parts = [canonical(part) for part in bare.split("|")]
    if len(parts) != 3 or not all(parts):
        faults[MALFORMED] += 1
        return None
    head, words, tail = parts
    known = known_relation(words)
    if known is None:
        faults[RELATION] += 1
        return None
    relation, turned = known
    if not stands(tail) or not (stands(head) or (of_patient and head == PATIENT)):
        faults[ABSENT] += 1
        return None
    if head == tail:
        faults[SELF] += 1
        return None
    return Triple(tail, relation, head) if turned else Triple(head, relation, tail)
