# SPDX-License-Identifier: Apache-2.0
"""Marked text and JSON: gold marks survive writing and reading, and no output breaks the reader (4.4)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.core.inventory import ENTITY_TYPES, TYPES
from medflare.data.notes.word_offsets import WordOffsets, locate_words
from medflare.tasks.extraction.markup import (
    ABSENT,
    ALTERED,
    EMPTY,
    NOT_JSON,
    STRAY,
    UNCLOSED,
    UNKNOWN,
    Mark,
    drop_crossing,
    keep_outermost,
    read_json,
    read_spans,
    write_json,
    write_spans,
)

SOURCE = locate_words("No chest pain, but back pain and 10 mg of morphine.")
VOCABULARY = ["pain", "no", "Pain", "10", "<", ">", "span", "/", "class", '"', "{", "[", "é", "\\", "&"]


@st.composite
def sources(draw: st.DrawFn) -> WordOffsets:
    return locate_words(" ".join(draw(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=14))))


@st.composite
def marked(draw: st.DrawFn) -> tuple[WordOffsets, list[Mark]]:
    source = draw(sources())
    count = len(source.words)
    ranges = st.integers(0, count - 1).flatmap(
        lambda first: st.tuples(st.just(first), st.integers(first + 1, count))
    )
    marks = draw(st.lists(st.builds(Mark, st.sampled_from(TYPES), ranges), max_size=6))
    return source, drop_crossing(marks)


def spans(output: str, types: tuple[str, ...] = ENTITY_TYPES) -> list[tuple[str, str]]:
    return [(m.label, words(m)) for m in read_spans(output, SOURCE, types).marks]


def words(mark: Mark, source: WordOffsets = SOURCE) -> str:
    return " ".join(source.words[slice(*mark.words)])


@given(marked())
@settings(max_examples=300, deadline=None)
def test_nested_marks_survive_spans(item: tuple[WordOffsets, list[Mark]]) -> None:
    source, marks = item
    output = read_spans(write_spans(source, marks), source, TYPES)
    assert set(output.marks) == set(marks)
    assert not output.faults


@given(marked())
@settings(max_examples=300, deadline=None)
def test_flat_marks_survive_json_up_to_which_equal_words(item: tuple[WordOffsets, list[Mark]]) -> None:
    source, marks = item[0], keep_outermost(item[1])
    output = read_json(write_json(source, marks), source, TYPES)
    labelled_words = [(m.label, words(m, source).casefold()) for m in marks]
    assert sorted((m.label, words(m, source).casefold()) for m in output.marks) == sorted(labelled_words)
    assert not output.faults


@given(marked())
@settings(max_examples=200, deadline=None)
def test_every_word_marked_by_itself_survives_json_exactly(item: tuple[WordOffsets, list[Mark]]) -> None:
    source = item[0]
    marks = [Mark("problem", (i, i + 1)) for i in range(len(source.words))]
    assert read_json(write_json(source, marks), source, TYPES).marks == marks


@given(
    sources(),
    st.one_of(
        st.text(max_size=120),
        st.lists(
            st.sampled_from([*VOCABULARY, '<span class="problem">', "</span>", "<span>", "<span", "</span",
                             '[{"entity": "problem", "text": "pain"}', "]", "{}", "[[", '{"entity":', "NaN"])
        ).map(" ".join),
    ),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_anything_can_be_read_and_marks_lie_inside_the_source(source: WordOffsets, output: str) -> None:
    for read in (read_spans, read_json):
        result = read(output, source, ENTITY_TYPES)
        assert all(0 <= m.words[0] < m.words[1] <= len(source.words) for m in result.marks)
        assert {m.label for m in result.marks} <= set(ENTITY_TYPES)
        assert all(count > 0 for count in result.faults.values())
        assert len(set(result.marks)) == len(result.marks)


@pytest.mark.parametrize(
    ("output", "found", "fault"),
    [
        ('No <span class="problem">chest pain</span>', [("problem", "chest pain")], None),
        ("No <SPAN Class='PROBLEM'>chest pain</SPAN >", [("problem", "chest pain")], None),
        ("<span id=1 class=problem title='a b'>chest pain</span>", [("problem", "chest pain")], None),
        ('<span class="symptom">chest pain</span>', [], UNKNOWN),
        ("<span>chest pain</span>", [], UNKNOWN),
        ('<span class="labvalue">10 mg</span>', [], UNKNOWN),
        ('<b><span class="problem">chest pain</span></b>', [("problem", "chest pain")], None),
        ('No <span class="problem">chest pain', [("problem", "chest pain")], UNCLOSED),
        ('No <span class="problem">chest pain</span> <span class="pro', [("problem", "chest pain")], None),
        ('No <span class="problem">chest pain</sp', [("problem", "chest pain")], UNCLOSED),
        ("No chest pain</span>", [], STRAY),
        ('<span class="problem"></span> No', [], EMPTY),
        ('No <span class="problem">headache</span>', [], ABSENT),
        ('No <span class="problem">bad chest pain</span>', [("problem", "chest pain")], ALTERED),
        ('No <span class="problem">chset pain</span>', [("problem", "pain")], ALTERED),
        ('<span class="drug">01 mg</span>', [("drug", "mg")], ALTERED),
    ],
)
def test_spans_as_models_write_them(output: str, found: list[tuple[str, str]], fault: str | None) -> None:
    assert spans(output) == found
    assert set(read_spans(output, SOURCE, ENTITY_TYPES).faults) == ({fault} if fault else set())


def test_a_single_predicted_pain_is_not_credited_to_later_ones() -> None:
    source = locate_words("pain at rest, pain at night, pain on walking")
    one = [Mark("problem", (0, 1))]
    assert read_spans('<span class="problem">pain</span> at rest', source, ENTITY_TYPES).marks == one
    assert read_json('[{"entity": "problem", "text": "pain"}]', source, ENTITY_TYPES).marks == one


def test_a_type_that_the_gold_lacks_is_kept() -> None:
    output = '<span class="reference_range">10 mg</span>'
    assert spans(output, TYPES) == [("reference_range", "10 mg")]


def test_a_tag_in_the_note_is_words_and_marks_around_it_hold() -> None:
    source = locate_words('typed <span class="drug">aspirin</span> and </span> into {text}')
    marks = [Mark("problem", (0, 9)), Mark("drug", (8, 9))]
    assert read_spans(write_spans(source, marks), source, TYPES).marks == marks
    assert read_spans(source.text, source, TYPES).marks == []


def test_nested_spans_are_all_read_and_the_outermost_is_one_flat_layer() -> None:
    output = '<span class="problem">chest <span class="drug">pain</span></span>'
    marks = read_spans(output, SOURCE, ENTITY_TYPES).marks
    assert [(m.label, words(m)) for m in marks] == [("problem", "chest pain"), ("drug", "pain")]
    assert keep_outermost(marks) == marks[:1]


def rows(*found: tuple[str, object]) -> str:
    return json.dumps([{"entity": label, "text": text} for label, text in found])


@pytest.mark.parametrize(
    ("output", "found", "fault"),
    [
        (rows(("problem", "back pain"), ("problem", "chest pain")), ["chest pain", "back pain"], None),
        (rows(("problem", "Chest  PAIN")), ["chest pain"], None),
        ("Sure [1]:\n" + rows(("problem", "chest pain")) + "\nDone [2].", ["chest pain"], None),
        ("[]", [], None),
        (rows(("test", 10)), ["10"], None),
        (rows(("problem", None)), [], EMPTY),
        (rows(("problem", ["chest pain"])), [], EMPTY),
        (rows(("symptom", "pain")), [], UNKNOWN),
        (rows(("problem", "felt")), [], ABSENT),
        (rows(*[("problem", "pain")] * 5), ["pain", "pain"], ABSENT),
        (rows(("problem", "chest pain"), ("drug", "morphine"))[:-14], ["chest pain"], NOT_JSON),
        ("none", [], NOT_JSON),
        ('{"entity": "problem", "text": "chest pain"}', ["chest pain"], NOT_JSON),
        ('[{"entity": "problem", "text": "chest pain"}, "pain"]', ["chest pain"], NOT_JSON),
        ('[{"entity": ' + "[" * 50_000 + "}", [], NOT_JSON),
        ('[{"entity": "problem", "text": ' + "1" * 5000 + "}]", [], NOT_JSON),
    ],
)  # fmt: skip
def test_json_as_models_write_it(output: str, found: list[str], fault: str | None) -> None:
    reading = read_json(output, SOURCE, ENTITY_TYPES)
    assert [words(m) for m in reading.marks] == found
    assert set(reading.faults) == ({fault} if fault else set())


def test_a_row_takes_its_words_after_the_row_before_not_inside_it() -> None:
    source = locate_words("chest pain, later pain")
    marks = read_json(rows(("problem", "chest pain"), ("problem", "pain")), source, ENTITY_TYPES).marks
    assert marks == [Mark("problem", (0, 2)), Mark("problem", (4, 5))]


def test_a_modifier_in_json_is_the_one_nearest_to_its_head() -> None:
    source = locate_words("no fever, no cough, no pain")
    row = rows(("negation", "no"))
    for word in (1, 4, 7):
        marks = read_json(row, source, TYPES, Mark("problem", (word, word + 1))).marks
        assert marks == [Mark("negation", (word - 1, word))]
