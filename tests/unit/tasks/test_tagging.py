# SPDX-License-Identifier: Apache-2.0
"""Tags and marks say the same; a tagger is asked what a language model is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES, MODIFIERS
from medflare.data.notes.word_offsets import locate_words
from medflare.data.records import Note
from medflare.models.encoder_folder import TextEncoderSettings, load_encoder
from medflare.models.tagger import TYPES, Tagger
from medflare.tasks.extraction.examples import head_question, ner_example, re_examples
from medflare.tasks.extraction.markup import Mark, keep_outermost
from medflare.tasks.extraction.predictor import training_examples
from medflare.tasks.extraction.tagging import AROUND, TaggingExtractor, marks_of, tags_of

WORDS = 12
MARKS = st.lists(
    st.builds(
        lambda label, first, length: Mark(label, (first, min(first + length, WORDS))),
        st.sampled_from(MODIFIER_TYPES),
        st.integers(0, WORDS - 1),
        st.integers(1, 5),
    ),
    max_size=8,
)
NO, BP, IP, BT, IT = 0, 1, 2, 3, 4  # problem is the first entity type, treatment the second


@given(MARKS)
def test_one_layer_of_marks_survives_tags(marks: list[Mark]) -> None:
    flat = keep_outermost(marks)
    assert marks_of(tags_of(flat, WORDS, MODIFIER_TYPES), MODIFIER_TYPES) == flat


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ([NO, NO], []),
        ([BP, IP, NO], [("problem", (0, 2))]),
        ([BP, BP], [("problem", (0, 1)), ("problem", (1, 2))]),
        ([NO, IP, IP], [("problem", (1, 3))]),
        ([BP, IT, IP], [("problem", (0, 1)), ("treatment", (1, 2)), ("problem", (2, 3))]),
        ([BT, NO, IT], [("treatment", (0, 1)), ("treatment", (2, 3))]),
    ],
)
def test_any_tags_read_as_spans(tags: list[int], spans: list[tuple[str, tuple[int, int]]]) -> None:
    assert [(mark.label, mark.words) for mark in marks_of(tags, ENTITY_TYPES)] == spans


@pytest.fixture(scope="module")
def extractor(tiny_encoder: Path) -> TaggingExtractor:
    tagger = Tagger(load_encoder(tiny_encoder, "fp32", "cpu", TextEncoderSettings(), 0), False, 0)
    return TaggingExtractor(tagger, sentences=1, longest=512, batch=8)


def notes(count: int = 6) -> list[Note]:
    from medflare.synthetic.notes import NOTE_HOSPITALS, generate_notes

    return list(generate_notes(NOTE_HOSPITALS[0], count))


def test_the_head_stands_between_two_marks_and_nothing_else_changes(extractor: TaggingExtractor) -> None:
    source = locate_words("No severe chest pain today.")
    plain, marked = (
        extractor.questions([example])[0].ids
        for example in (
            head_question("n", source, Mark("problem", (0, 6))),
            head_question("n", source, Mark("drug", (2, 4))),
        )
    )
    first = extractor.tagger.vocabulary
    assert (plain[1], plain[-2]) == (first + ENTITY_TYPES.index("problem"), first + len(ENTITY_TYPES))
    assert [i for i in marked if i >= first] == [first + ENTITY_TYPES.index("drug"), first + 4]
    assert [i for i in marked if i < first] == [i for i in plain if i < first]


def test_every_word_has_its_gold_tag_and_every_first_piece_its_word(extractor: TaggingExtractor) -> None:
    examples, _ = training_examples(extractor, notes())
    assert {example.task for example in examples} == {"ner", "re"}
    for example, question in zip(examples, extractor.questions(examples), strict=True):
        assert len(question.tags) == len(question.firsts) == len(example.source.words)
        assert marks_of(question.tags, TYPES[example.task]) == keep_outermost(example.answer)
        alone = [extractor.tagger.pieces([[word]])[0][0] for word in example.source.words]
        assert [question.ids[first] for first in question.firsts] == [numbers[0] for numbers in alone]


def test_no_question_is_longer_than_the_encoder_has_places(extractor: TaggingExtractor) -> None:
    text = "chest pain and fever with " * 80
    windows = extractor.windows(Note(note_id="n", text=text)).windows
    source = locate_words(text)
    assert len(windows) > 1
    assert "".join(window.text for window in windows).replace(" ", "") == text.replace(" ", "")
    for window in windows:
        window_text = ner_example(window).source
        question = head_question("n", window_text, Mark("problem", (0, len(window_text.words))))
        assert len(extractor.questions([question])[0].ids) <= 128 == extractor.room + AROUND
    assert sum(len(ner_example(window).source.words) for window in windows) == len(source.words)


def test_answers_hold_only_what_the_head_may_have(extractor: TaggingExtractor) -> None:
    examples = [e for note in notes() for w in extractor.windows(note).windows for e in re_examples(w)]
    for example, reading in zip(examples, extractor.predict(examples), strict=True):
        assert example.head is not None
        assert {mark.label for mark in reading.marks} <= set(MODIFIERS[example.head.label])
        assert not reading.faults


def test_modifiers_that_overlap_are_counted(extractor: TaggingExtractor) -> None:
    source = locate_words("left upper lobe mass")
    inner = head_question(
        "n", source, Mark("problem", (3, 4)), (Mark("bodyloc", (0, 3)), Mark("severity", (1, 2)))
    )
    losses: Counter[str] = Counter()
    question = extractor.questions([inner], losses)[0]
    assert losses == {"overlapping modifier": 1}
    assert marks_of(question.tags, MODIFIER_TYPES) == [Mark("bodyloc", (0, 3))]


def test_a_word_the_tokenizer_drops_shifts_nothing(extractor: TaggingExtractor) -> None:
    words = ("fever", "\ue000" * 200, "cough")
    pieces = extractor.tagger.pieces([words, ("fever", "cough")])
    assert (pieces[0][0], pieces[0][2]) == (pieces[1][0], pieces[1][1])


def test_documents_carry_gold_and_answers_of_both_kinds(extractor: TaggingExtractor) -> None:
    result = extractor.documents(notes(2), "site-1", "generic")
    assert [item.note_id for item in result] == [note.note_id for note in notes(2)]
    assert all(item.outputs > 0 and item.faults == {} for item in result)
    assert all(item.links_gold_heads is not None and item.gold_links for item in result)
