# SPDX-License-Identifier: Apache-2.0
"""A grammar that writes marked-up clinical sentences: rules name other rules and the heads they hang on.

In a rule, `<a~b~>` is a choice, `{rule}` is replaced by what that rule writes, `@` is the key of the head in
question and `{rule:@a}` hands a key of its own to the rule. Everything random comes from one generator.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .profiles import NotesProfile

Production = Sequence[str] | Callable[["Writer", str], str]
_CHOICE = re.compile(r"<([^<>]*~[^<>]*)>")
_SLOT = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
_WOMEN = re.compile(
    "ovar|hysterectomy|CA-125|mammo|vaginal|breast|tamoxifen|letrozole|mastectomy|lumpectomy|gestational"
    "|pregnancy|ductal carcinoma|Pap |paclitaxel"
)
_MEN = re.compile("prostat|PSA|leuprolide|tamsulosin")
_PLACE = re.compile(r"_([^_]+)_")
_DEGREE = re.compile(r"\^([^^]+)\^")
_COURSE = re.compile(r"\*([^*]+)\*")


class Writer:
    """Writes one note, and keeps in `mentioned` what it has named, so that no list names a thing twice."""

    def __init__(
        self, profile: NotesProfile, rules: Mapping[str, Production], rng: np.random.Generator
    ) -> None:
        self.profile = profile
        self.rules = rules
        self.rng = rng
        self.mentioned: set[str] = set()
        self.specialty = self.draw_specialty()
        self.age = int(np.clip(rng.normal(*profile.age), 18, 97))
        self.year = int(rng.integers(2008, 2020))
        self.woman = bool(rng.random() < profile.women)
        self.his = "her" if self.woman else "his"
        # What the sentence speaks of, for the slots that follow.
        self.image = self.workup = self.order = self.indication = ""
        self.plural = False

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def draw_specialty(self) -> str:
        names = list(self.profile.emphasis)
        weights = np.array([self.profile.emphasis[name] for name in names])
        return names[int(self.rng.choice(len(names), p=weights / weights.sum()))]

    def write(self, rule: str, key: str) -> str:
        """Return what a rule writes about the head `key`, in markup."""
        patterns = self.rules[rule]
        return patterns(self, key) if callable(patterns) else self.expand(self.pick(patterns), key)

    def expand(self, pattern: str, key: str) -> str:
        """Return a pattern with all choices made and all slots filled."""
        while _CHOICE.search(pattern):
            pattern = _CHOICE.sub(lambda match: self.pick(match[1].split("~")), pattern)
        pattern = pattern.replace("@", key)
        return _SLOT.sub(lambda match: self.write(match[1], match[2] or key), pattern)

    def entry(self, lexicon: Mapping[str, Sequence[str]], borrow: float = 0.35) -> str:
        """Draw an entry that fits the patient and was not mentioned yet, mostly of the note's specialty."""
        for _ in range(20):
            name = self.specialty if not self.chance(borrow) else self.elsewhere()
            entry = self.pick(lexicon[name])
            stem = stem_of(entry)
            fits = not (_MEN if self.woman else _WOMEN).search(entry)
            if fits and not self.is_mentioned(stem) and not is_withheld(stem, self.profile.withheld):
                break
        self.mentioned.add(stem)
        return entry

    def is_mentioned(self, stem: str) -> bool:
        """Return whether the note has this or a longer name that ends as this does ("kidney disease")."""
        ending = " ".join(re.sub("[_^*+]", "", stem).split()[-2:])
        return any(re.sub("[_^*+]", "", name).endswith(ending) for name in self.mentioned)

    def elsewhere(self) -> str:
        return "general" if self.chance(0.6) else self.draw_specialty()

    def form(self, names: str) -> str:
        """Return one of the spellings `full=short=short`; a house that abbreviates prefers a short one."""
        full, *short = names.split("=")
        return self.pick(short) if short and self.chance(self.profile.abbreviates) else full


def stem_of(entry: str) -> str:
    """Return the full name of an entry: what comes before its short forms and its columns."""
    return re.split("[=;|]", entry)[0].strip()


def is_withheld(entry: str, share: float) -> bool:
    """Return whether an entry belongs to the share kept from a hospital; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(entry.encode(), digest_size=4).digest(), "big") < share * 2**32


def mark_modifiers(entry: str, key: str) -> str:
    """Return the markup of an entry that writes _body location_, ^severity^ and *course*."""
    for pattern, label in ((_PLACE, "bodyloc"), (_DEGREE, "severity"), (_COURSE, "course")):
        entry = pattern.sub(rf"[{label} >{key}|\1]", entry)
    return entry
