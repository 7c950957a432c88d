# SPDX-License-Identifier: Apache-2.0
"""Constrained copying (ML-16): any path of its grammar can be read, and every gold answer is a path."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES
from medflare.data.notes.word_offsets import locate_words
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.text_model import TextModel
from medflare.tasks.extraction.copying import (
    CHEAP_TOKENS,
    DEAR_TOKENS,
    CopyGuide,
    CopyWords,
    DraftLengths,
)
from medflare.tasks.extraction.examples import NER, Example
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.markup import Mark, drop_crossing, read_spans, write_spans
from medflare.tasks.extraction.prompts import ExtractionWording

TEXTS = (
    "No chest pain ( since Monday ) , 2.5 mg of aspirin .",
    'She wrote <span class="problem"> in the note: "5 < 6".',
    "Fièvre à 39,5 °C — œdème; \u0939\u093f\u0928\u094d\u0926\u0940 und 肺炎 🫀!",
    "x",
)


@cache
def model() -> TextModel:
    return TextModel(load_backbone(None, "fp32", "cpu", "notes_decoder"), LoraSettings(), (GENERIC,), 0)


@cache
def copy_words() -> CopyWords:
    table = model().token_table
    assert table is not None
    return CopyWords(model(), table)


def guide(text: str, *, free: bool = False) -> CopyGuide:
    return copy_words().guide(locate_words(text), ENTITY_TYPES, free=free)


def text_of(tokens: list[int]) -> str:
    return model().decoded([token for token in tokens if token != model().end])


def draws() -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(TEXTS) | st.text(max_size=40), st.integers(0, 2**32))


@settings(max_examples=60, deadline=None)
@given(draws())
def test_whatever_is_chosen_can_be_read_and_marks_words_of_the_text(drawn: tuple[str, int]) -> None:
    text, seed = drawn
    chance, walker = random.Random(seed), guide(text)
    state, tokens = walker.start, list[int]()
    while not tokens or tokens[-1] != model().end:
        tokens.append(chance.choice(sorted(walker.allowed(state) or ())))
        state = walker.after(state, tokens[-1])
        if len(tokens) == 150:
            tokens += walker.ending(state)
    source = locate_words(text)
    parsed = read_spans(text_of(tokens), source, ENTITY_TYPES)
    assert not parsed.failed
    assert not parsed.faults, "every mark is around words of the text, in their places"


@settings(max_examples=60, deadline=None)
@given(draws())
def test_the_answer_that_a_model_is_trained_to_write_is_a_path(drawn: tuple[str, int]) -> None:
    text, seed = drawn
    chance, source = random.Random(seed), locate_words(text)
    places = range(len(source.words))
    marks = [
        Mark(chance.choice(ENTITY_TYPES), (i, min(i + chance.randint(1, 3), len(places)))) for i in places
    ]
    chosen = drop_crossing(chance.sample(marks, min(len(marks), 4)))
    kept = [m for m in chosen if not any(m is not o and m.label == o.label and
            m.words[0] < o.words[1] and o.words[0] < m.words[1] for o in chosen)]  # fmt: skip
    walker = guide(text)
    state = walker.start
    for token in model().answer_ids([write_spans(source, kept)])[0]:
        assert token in (walker.allowed(state) or ())
        state = walker.after(state, token)


def test_what_is_drafted_first_is_the_text_without_marks() -> None:
    for text in TEXTS:
        tokens = guide(text).draft(guide(text).start, True)
        assert tokens == model().answer_ids([locate_words(text).text])[0]


@pytest.mark.parametrize(("parameters", "lengths"), [(2_600_000, CHEAP_TOKENS), (134_515_008, DEAR_TOKENS)])
def test_a_large_model_drafts_little_at_a_time(
    parameters: int, lengths: DraftLengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model(), "parameter_count", lambda: parameters)
    table = model().token_table
    assert table is not None
    words = CopyWords(model(), table)
    assert words.lengths is lengths
    source = locate_words("No chest pain since Monday, then 2.5 mg of aspirin daily, and she went home.")
    whole = model().answer_ids([source.text])[0]
    walker = words.guide(source, ENTITY_TYPES)
    assert walker.draft(walker.start, True) == whole[: lengths.first]
    assert walker.draft(walker.start, False) == whole[: lengths.outside]
    state = walker.start
    for token in model().token_ids(['<span class="problem">'])[0]:
        state = walker.after(state, token)
    assert walker.draft(state, False) == whole[: lengths.inside]


def test_a_type_that_is_open_is_not_opened_again_and_an_empty_one_is_not_closed() -> None:
    walker = guide("chest pain")
    opened = [t for t in walker.allowed(walker.start) or () if "problem" in text_of([t])]
    state = walker.after(walker.start, opened[0])
    texts = {text_of([token]) for token in walker.allowed(state) or ()}
    assert not any("problem" in text or "</span>" in text for text in texts)
    assert any("drug" in text for text in texts)


def test_an_answer_out_of_budget_is_completed_and_read() -> None:
    source = locate_words("chest pain since Monday")
    walker = copy_words().guide(source, ENTITY_TYPES)
    tokens = model().token_ids(['<span class="problem">chest'])[0]
    state = walker.start
    for token in tokens:
        state = walker.after(state, token)
    parsed = read_spans(text_of([*tokens, *walker.ending(state)]), source, ENTITY_TYPES)
    assert (parsed.marks, parsed.faults) == ([Mark("problem", (0, 1))], {})


def test_free_decoding_loses_its_draft_where_it_leaves_the_text() -> None:
    walker = guide("chest pain", free=True)
    assert walker.allowed(walker.start) is None
    state = walker.after(walker.start, model().token_ids(["aspirin"])[0][0])
    assert (state, walker.draft(state, False), walker.ending(state)) == (None, [], [])


def examples(texts: tuple[str, ...]) -> list[Example]:
    return [Example(note_id="", task=NER, source=locate_words(text)) for text in texts]


def test_an_untrained_model_cannot_be_unreadable() -> None:
    asked = examples(TEXTS)
    copied = Extractor(model(), ExtractionWording(), decoding="copy").predict(asked)
    assert all(not output.faults for output in copied)


def test_json_cannot_be_copied_with_marks() -> None:
    with pytest.raises(ConfigError, match="format 'json'"):
        Extractor(model(), ExtractionWording(format="json"), decoding="copy")
