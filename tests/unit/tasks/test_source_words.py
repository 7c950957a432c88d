# SPDX-License-Identifier: Apache-2.0
"""Words with code point offsets: what is one word, and that offsets lead back to the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.data.notes.word_offsets import locate_words

TEXTS = st.one_of(
    st.text(max_size=60),
    st.text("aé1. ,\r\n\xa0\u200b\u0301\ufe0f\u200d👩⚕️<>/_ß़द", max_size=60),
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("500mg x3d", ["500", "mg", "x", "3", "d"]),
        ("1,5 mg; 2.5%", ["1,5", "mg", ";", "2.5", "%"]),
        ("pain,\r\nno\xa0fever", ["pain", ",", "no", "fever"]),
        ("Fie\u0301vre", ["Fie\u0301vre"]),
        ("दर्द है", ["दर्द", "है"]),
        ("hemo\u00adglobin\u200bA \ufeffB", ["hemo\u00adglobin", "A", "B"]),
        ("ok ❤️👍", ["ok", "❤️", "👍"]),
        ("a_b", ["a", "_", "b"]),
        ("\x00\x1b", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert list(locate_words(text).words) == words


def test_a_tag_in_a_note_is_shown_as_its_words() -> None:
    assert locate_words('<span class="x">').text == '< span class = " x " >'


@given(TEXTS, st.integers(0, 1000))
def test_offsets_lead_to_the_words_and_never_overlap(text: str, offset: int) -> None:
    source = locate_words(text, offset)
    result = zip(source.words, source.starts, source.ends, strict=True)
    assert all(text[start - offset : end - offset] == word for word, start, end in result)
    borders = [border for pair in zip(source.starts, source.ends, strict=True) for border in pair]
    assert borders == sorted(borders)
    assert all(start < end for start, end in zip(source.starts, source.ends, strict=True))


@given(TEXTS, st.data())
def test_cover_is_the_smallest_range_of_words_over_characters(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start + 1, len(text) + 1))
    source = locate_words(text)
    touched = [i for i in range(len(source.words)) if source.starts[i] < end and source.ends[i] > start]
    expected = (touched[0], touched[-1] + 1) if touched else None
    assert source.cover(start, end) == expected


@given(TEXTS, st.data())
def test_cover_of_a_span_is_the_range_it_came_from(text: str, data: st.DataObject) -> None:
    source = locate_words(text, 7)
    if source.words:
        first = data.draw(st.integers(0, len(source.words) - 1))
        words = (first, data.draw(st.integers(first + 1, len(source.words))))
        assert source.cover(*source.span(words)) == words


@given(TEXTS)
def test_words_joined_by_spaces_are_the_same_words(text: str) -> None:
    source = locate_words(text)
    assert locate_words(source.text).words == source.words
