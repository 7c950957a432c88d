# SPDX-License-Identifier: Apache-2.0
"""Alignment of a model's words to the source's."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.tasks.extraction.alignment import align, normalise

WORDS = st.lists(st.sampled_from(["a", "b", "c", "A"]), max_size=7)


@pytest.mark.parametrize(
    ("message", "written"),
    [("10", "01"), ("100", "010"), ("left", "felt"), ("mass", "mas"), ("1.5", "15"), ("no", "on")],
)
def test_words_of_the_same_letters_are_not_the_same(message: str, written: str) -> None:
    assert align([written], [message]) == [None]


@pytest.mark.parametrize(
    ("message", "written"),
    [("PAIN", "pain"), ("ﬁbroma", "fibroma"), ("Straße", "STRASSE"), ("hemo\u00adglobin", "hemoglobin"),
     ("fie\u0301vre", "fi\u00e9vre"), ("µg", "μg")],
)  # fmt: skip
def test_case_and_compatible_forms_do_not_matter(message: str, written: str) -> None:
    assert align([written], [message]) == [0]


def test_one_word_stands_for_one_occurrence() -> None:
    assert align(["pain", "and", "pain", "and", "pain"], ["pain"]) == [0]
    assert align(["pain"], ["pain", "pain"]) == [0, None]


def test_an_output_that_was_cut_stays_where_it_began() -> None:
    assert align(["x", "pain", "y", "pain"], ["X2", "pain"]) == [None, 1]


@given(WORDS, WORDS)
@settings(max_examples=300, deadline=None)
def test_a_longest_alignment_with_the_earliest_source_words(source: list[str], output: list[str]) -> None:
    alignment = align(source, output)
    places = [place for place in alignment if place is not None]
    assert len(alignment) == len(output)
    assert places == sorted(set(places))
    assert all(
        p is None or normalise(source[p]) == normalise(w) for p, w in zip(alignment, output, strict=True)
    )
    assert tuple(places) == longest_common(source, output)


def longest_common(source: list[str], output: list[str]) -> tuple[int, ...]:
    """By trying every choice of source words, the longest and earliest first."""
    wanted = [normalise(word) for word in output]
    for size in range(min(len(source), len(output)), 0, -1):
        for places in combinations(range(len(source)), size):
            rest = iter(wanted)
            if all(normalise(source[place]) in rest for place in places):
                return places
    return ()


@given(st.text(max_size=12))
def test_normalising_twice_changes_nothing(word: str) -> None:
    assert normalise(normalise(word)) == normalise(word)
