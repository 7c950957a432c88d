# SPDX-License-Identifier: Apache-2.0
"""Sentences and windows: where a sentence ends, what is never cut, and what windows lose on public notes."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.data.notes.windows import sentences, split_note
from medflare.data.records import Entity, Note, Relation
from site_builders import read_cohort

ONE_SENTENCE = [
    "Dr. Smith saw her.",
    "Seen by Drs. Jones and Lee today.",
    "Lasix 40 mg. p.o. q.d. for edema.",
    "Take 2 tabs. b.i.d. p.r.n. pain.",
    "Aspirin 81 mg p.o. Q.D. was held.",
    "Left vs. Right was unclear.",
    "No. 5 scalpel, see Fig. 2 and e.g. Smith.",
    "1. Aspirin daily.",
    "12. Follow up.",
    "Diagnoses: 1. Anemia,2. Pneumonia.",
    "Hemoglobin 7.1 and 0.5 mg given.",
    "S. aureus grew in the J. Smith culture.",
    "Approx. 3 days ago.",
    "NicAlert level ? 100 ng/ml.",
    "He returned at 5 p.m. on Monday.",
]
TWO_SENTENCES = [
    ("She has pain.", "No fever."),
    ("Lasix 40 mg p.o. q.d.", "The patient did well."),
    ("He weighs 80 kg.", "He smokes."),
    ("Is it stable?", "Yes."),
    ('She said "I fell."', "No fracture."),
    ("Stable (see above).", "(Details follow.)"),
    ("No change.", "2. Anemia."),
    ("Pain at age 57.", "The mother is well."),
    ("Stable.", "- Continue aspirin."),
    ("cut by a\r", "carriage return"),
    ("Medications\n", "Lasix"),
]


@pytest.mark.parametrize("text", ONE_SENTENCE)
def test_these_marks_end_no_sentence(text: str) -> None:
    assert [text[start:end] for start, end in sentences(text)] == [text]


@pytest.mark.parametrize(("first", "second"), TWO_SENTENCES)
def test_these_do(first: str, second: str) -> None:
    text = f"{first} {second}"
    assert [text[start:end] for start, end in sentences(text)] == [first.strip(), second]


def test_no_sentence_ends_inside_a_span_that_is_kept() -> None:
    text = "Count of 140. \n5. History."
    assert len(sentences(text)) == 2
    assert sentences(text, [(9, 16)]) == [(0, 26)]
    assert sentences("pain.\nfever", [(0, 6)]) == [(0, 6), (6, 11)]


def test_a_dictation_without_line_ends_takes_no_more_than_linear_time() -> None:
    text = "5 mg. p.o. q.d. and " * 20_000
    started = time.process_time()
    assert len(sentences(text)) == 1
    assert time.process_time() - started < 30


TEXTS = st.text(alphabet='aB1 .?!\r\n"(-,mg', max_size=60)


@given(TEXTS, st.lists(st.tuples(st.integers(0, 59), st.integers(1, 30)), max_size=4))
@settings(max_examples=300, deadline=None)
def test_sentences_cover_every_word_once_and_keep_every_span(text: str, marks: list[tuple[int, int]]) -> None:
    keep = [(start, start + size) for start, size in marks if start + size <= len(text)]
    result = sentences(text, keep)
    assert all(a < b <= c for (a, b), (c, _) in pairwise(result))
    covered = {place for start, end in result for place in range(start, end)}
    assert all(text[place].isspace() or place in covered for place in range(len(text)))
    assert all(any(a <= start and end <= b for a, b in result) for start, end in keep)


def note(text: str, *spans: tuple[tuple[int, int], ...], relations: tuple[tuple[int, int], ...] = ()) -> Note:
    entities = tuple(
        Entity(entity_id=f"T{i}", label="problem", spans=span) for i, span in enumerate(spans, start=1)
    )
    linked = tuple(Relation(label="hasAttr", head=f"T{a}", tail=f"T{b}") for a, b in relations)
    return Note(note_id="n", text=text, entities=entities, relations=linked)


FOUR = "Pain is mild.\nNo fever.\n\nChest pain again.\nHe left."


def test_every_sentence_is_in_exactly_one_window_also_without_entities() -> None:
    split = split_note(note(FOUR, ((0, 4),)))
    assert [w.text for w in split.windows] == ["Pain is mild.", "No fever.", "Chest pain again.", "He left."]
    assert [len(w.entities) for w in split.windows] == [1, 0, 0, 0]
    paired = split_note(note(FOUR), 3)
    assert [w.text for w in paired.windows] == ["Pain is mild.\nNo fever.\n\nChest pain again.", "He left."]


def test_entities_keep_their_offsets_in_the_note() -> None:
    second = split_note(note(FOUR, ((0, 4),), ((31, 35),))).windows[2]
    assert (second.start, second.entities[0].spans) == (25, ((31, 35),))
    assert second.text[31 - second.start : 35 - second.start] == "pain"


def test_relations_between_windows_are_lost_and_counted() -> None:
    given_note = note(FOUR, ((0, 4),), ((8, 12),), ((31, 35),), relations=((1, 2), (3, 2)))
    single = split_note(given_note)
    assert (single.relations_lost, single.relations_total, single.entities_cut) == (1, 2, 0)
    assert [len(w.relations) for w in single.windows] == [1, 0, 0, 0]
    assert split_note(given_note, 3).relations_lost == 0


def test_fragments_in_two_sentences_are_cut_and_counted() -> None:
    split = split_note(note(FOUR, ((0, 4), (17, 22))))
    assert (split.entities_cut, [len(w.entities) for w in split.windows]) == (1, [0, 0, 0, 0])
    assert split_note(note(FOUR, ((0, 4), (17, 22))), 2).entities_cut == 0


def test_windows_take_fewer_sentences_where_they_would_be_too_long() -> None:
    split = split_note(note(FOUR), 4, max_length=25)
    assert [w.text for w in split.windows] == ["Pain is mild.\nNo fever.", "Chest pain again.", "He left."]


def words(text: str) -> int:
    return len(text.split())


def test_a_long_sentence_is_cut_between_words_outside_entities() -> None:
    text = "severe pain in the left lower leg since Monday"
    split = split_note(note(text, ((19, 33),)), max_length=5, length=words)
    assert [w.text for w in split.windows] == ["severe pain in the", "left lower leg since Monday"]
    assert split.entities_cut == 0
    forced = split_note(note(text, ((19, 33),)), max_length=2, length=words)
    assert max(words(w.text) for w in forced.windows) == 2
    assert forced.entities_cut == 1


@given(TEXTS, st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_no_window_is_too_long_and_no_word_is_lost(text: str, limit: int, several: int) -> None:
    windows = split_note(note(text), several, max_length=limit).windows
    assert all(len(window.text) <= limit for window in windows)
    assert "".join("".join(w.text.split()) for w in windows) == "".join(text.split())


def test_a_window_needs_a_sentence_and_a_length() -> None:
    for wrong in ({"sentences_per_window": 0}, {"max_length": 0}):
        with pytest.raises(ValueError, match="must be 1 or more"):
            split_note(note(FOUR), **wrong)


LOSSES = {
    "mtsamples": ("brat", "mtsamples_brat", 1, 14, 4742),
    "maccrobat": ("notes_jsonl", "maccrobat", 2, 75, 5255),
    "chia": ("notes_jsonl", "chia", 6, 5, 5240),
    "phee": ("notes_jsonl", "phee", 0, 2, 2083),
}


@pytest.mark.parametrize("corpus", LOSSES)
def test_single_sentences_lose_few_links_of_public_notes(public_data: Path, corpus: str) -> None:
    """Entities cut where the text alone decides, then relations lost where no entity is cut."""
    format, folder, cut, lost, total = LOSSES[corpus]
    notes = read_cohort(format, public_data / "ie" / folder, label_map=corpus).notes
    windowed = [split_note(found) for found in notes]
    assert sum(item.relations_lost for item in windowed) <= lost
    assert sum(item.relations_total for item in windowed) == total
    outside = 0
    for found in notes:
        spans = sentences(found.text)
        for entity in found.entities:
            begin, end = entity.spans[0][0], entity.spans[-1][1]
            outside += not any(a <= begin and end <= b for a, b in spans)
    assert outside <= cut


def test_without_kept_spans_the_annotation_has_no_say_in_where_sentences_end() -> None:
    text = "Seen by St. Mary. Today no fever."
    entity = Entity(entity_id="T1", label="problem", spans=((8, 23),))
    note = Note(note_id="n", text=text, entities=(entity,))
    guided, blind = split_note(note), split_note(note, keep=())
    bare = split_note(Note(note_id="n", text=text))
    assert [w.text for w in blind.windows] == [w.text for w in bare.windows]
    assert len(guided.windows) < len(blind.windows)
    assert (guided.entities_cut, blind.entities_cut) == (0, 1)
