# SPDX-License-Identifier: Apache-2.0
"""Surrogates: nothing of the old text is left, offsets are found again, one key reads alike for ever."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.identifiers.kinds import Identifier
from medflare.identifiers.rules import RuleDetector
from medflare.identifiers.surrogates import Surrogates

KEY = bytes(range(32))
TEXT = (
    "Patient: Mary Whitcombe, MRN: 00481516, DOB: 03/14/1951. Seen on 03/28/1951 by Dr. Meyer. "
    "Mary Whitcombe lives at 12 Oak Hill Road, Boston, MA 02115, phone (617) 555-1234."
)


def replaced(text: str = TEXT, patient: str = "p1", key: bytes = KEY) -> str:
    return Surrogates(key).replace(text, RuleDetector().find(text), patient).text


def test_nothing_of_the_old_identifiers_is_left() -> None:
    new = replaced()
    for words in (
        "Mary",
        "Whitcombe",
        "00481516",
        "1951",
        "Meyer",
        "Oak Hill",
        "Boston",
        "02115",
        "555-1234",
    ):
        assert words not in new
    assert new.startswith("Patient: ")


def test_a_person_keeps_one_name_and_a_key_one_text() -> None:
    assert replaced() == replaced()
    assert replaced(key=KEY[::-1]) != replaced()
    names = [replaced("Dr. Meyer saw her."), replaced("Dr. Meyer called.", "p2")]
    assert names[0].split()[1] == names[1].split()[1]


def test_dates_of_a_patient_keep_their_distance_and_their_form() -> None:
    first, second = replaced("on 03/14/1951 and 03/28/1951").removeprefix("on ").split(" and ")
    dates = [datetime.datetime.strptime(text, "%m/%d/%Y") for text in (first, second)]
    assert dates[1] - dates[0] == datetime.timedelta(days=14)
    assert dates[0].weekday() == datetime.datetime(1951, 3, 14).weekday()
    assert replaced("on 03/14/1951", "p2") != replaced("on 03/14/1951")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="a key of 3 bytes; expected 16"):
        Surrogates(b"abc")


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["Meyer", "03/14/1951", "(617) 555-1234"])), max_size=4
    )
)
def test_words_between_identifiers_are_found_at_their_new_offsets(parts: list[tuple[int, str]]) -> None:
    text, marks, found = "", [], []
    for number, (blanks, words) in enumerate(parts):
        marks.append((len(text), len(text) + 2, f"w{number}"))
        text += f"w{number}" + " " * blanks
        kind = {"M": "name", "0": "date", "(": "phone"}[words[0]]
        found.append(Identifier(len(text), len(text) + len(words), kind))  # type: ignore[arg-type]
        text += words
    new = Surrogates(KEY).replace(text, found, "p")
    for start, end, word in marks:
        assert new.text[new.offset(start) : new.offset(end, end=True)] == word
    for item in found:
        inside = new.text[new.offset(item.start) : new.offset(item.end, end=True)]
        half = new.text[new.offset(item.start + 1) : new.offset(item.end - 1, end=True)]
        assert inside == half != ""
