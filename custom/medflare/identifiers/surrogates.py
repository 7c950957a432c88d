# SPDX-License-Identifier: Apache-2.0
"""Identifiers replaced by surrogates: the same name becomes the same other name, and a patient's dates move
together.

Surrogates come from a keyed hash, so that who has the text but not the key cannot find out what stood
there, and the same patient reads alike in every run. Dates keep their distances within a patient.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from medflare.identifiers.kinds import Identifier, Kind

FIRST_NAMES = ("Alex", "Robin", "Kim", "Sasha", "Jamie", "Casey", "Morgan", "Riley", "Avery", "Quinn")
SURNAMES = (
    "Aston",
    "Birch",
    "Calder",
    "Denby",
    "Elgin",
    "Farrow",
    "Garrow",
    "Halden",
    "Ivers",
    "Kelso",
    "Moray",
)
STREETS = ("Maple", "Cedar", "Birch", "Willow", "Juniper", "Hazel", "Alder", "Rowan")
PLACES = ("Ashford", "Brookfield", "Clayton", "Dunmore", "Eastvale", "Fairview", "Glenwood", "Harbury")
MOST_DAYS = 364
"""A patient's dates move by up to so many days, whole weeks, so that weekdays stay."""

_FORMATS = (
    *("%Y-%m-%d", "%m/%d/%Y", "%m/%d/%y", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y"),
    *("%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y", "%B %Y", "%b %Y"),
)


@dataclass(frozen=True, slots=True)
class Edit:
    """A stretch of the old text, and how long what stands in its place is."""

    start: int
    end: int
    length: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text with surrogates, and what is needed to find offsets of the old text in it."""

    text: str
    edits: tuple[Edit, ...]

    def offset(self, old: int, *, end: bool = False) -> int:
        """Return where an offset of the old text is now; inside a surrogate, where that begins or ends.

        Args:
            end: whether it is the end of a span, which then reaches the end of the surrogate.
        """
        moved = 0
        for edit in self.edits:
            if old <= edit.start:
                break
            if old < edit.end:
                return edit.start + moved + (edit.length if end else 0)
            moved += edit.length - (edit.end - edit.start)
        return old + moved


class Surrogates:
    """Replaces identifiers by surrogates of one key.

    Args:
        key: secret of the site, at least 16 bytes.

    Raises:
        ValueError: the key is shorter.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError(f"a key of {len(key)} bytes; expected 16 at least")
        self._key = key

    def replace(self, text: str, found: Sequence[Identifier], patient: str) -> Replaced:
        """Return the text with a surrogate in place of each identifier.

        Args:
            text: of a record.
            found: its identifiers, in order, none overlapping another.
            patient: whose record it is; their dates move by the same number of days everywhere.
        """
        parts, edits, last = list[str](), list[Edit](), 0
        for item in found:
            surrogate = self._surrogate(item.kind, text[item.start : item.end], patient)
            parts += [text[last : item.start], surrogate]
            edits.append(Edit(item.start, item.end, len(surrogate)))
            last = item.end
        return Replaced("".join([*parts, text[last:]]), tuple(edits))

    def _surrogate(self, kind: Kind, words: str, patient: str) -> str:
        if kind == "date":
            return self._moved_date(words, patient)
        if kind == "name":
            return self._name(words)
        if kind in ("record_number", "phone"):
            return self._digits(words)
        if kind == "age_over_89":
            return "90"
        if kind == "email":
            return f"{self._choose(SURNAMES, 'email', words).lower()}@example.org"
        if kind == "web_address":
            return "https://example.org"
        if kind == "institution":
            return f"{self._choose(PLACES, kind, words)} Hospital"
        return self._address(words)

    def _name(self, words: str) -> str:
        """Return another name of as many parts; a surname alone and with a first name stays the same one."""
        parts = re.findall(r"[^\s,]+", words)
        surname = self._choose(SURNAMES, "surname", parts[0] if "," in words else parts[-1])
        if len(parts) == 1:
            return surname
        first = self._choose(FIRST_NAMES, "first", parts[-1] if "," in words else parts[0])
        return f"{surname}, {first}" if "," in words else f"{first} {surname}"

    def _address(self, words: str) -> str:
        if words[:1].isdigit() and not re.match(r"\d{5}\b", words):
            return f"{1 + self._number('house', words) % 98} {self._choose(STREETS, 'street', words)} Street"
        return self._choose(PLACES, "place", words)

    def _digits(self, words: str) -> str:
        """Return the text with other digits, everything else kept."""
        digits = str(self._number("digits", words)).zfill(24)
        return "".join(
            digits[place % 24] if letter.isdigit() else letter for place, letter in enumerate(words)
        )

    def _moved_date(self, words: str, patient: str) -> str:
        weeks = self._number("date", patient) % (2 * MOST_DAYS // 7) - MOST_DAYS // 7
        days = datetime.timedelta(days=7 * (weeks if weeks < 0 else weeks + 1))
        plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|(?<=[a-z])\.", "", words)
        for form in _FORMATS:
            with suppress(ValueError, OverflowError):
                return (datetime.datetime.strptime(plain, form) + days).strftime(form)
        return "an earlier date"

    def _choose(self, names: Sequence[str], what: str, words: str) -> str:
        return names[self._number(what, words.lower()) % len(names)]

    def _number(self, what: str, words: str) -> int:
        digest = hmac.new(self._key, f"{what}\0{words}".encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:10], "big")
