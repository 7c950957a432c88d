# SPDX-License-Identifier: Apache-2.0
"""Examples and their wording: which questions a window gives, what they show, what cannot be expressed."""

from __future__ import annotations

from typing import Literal

import pytest

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES, MODIFIERS, TYPES
from medflare.data.notes.windows import Window, split_note
from medflare.data.notes.word_offsets import locate_words
from medflare.data.records import Entity, Note, Relation
from medflare.tasks.extraction.examples import LostMarks, head_question, ner_example, re_examples
from medflare.tasks.extraction.markup import Mark
from medflare.tasks.extraction.prompts import DEFINITIONS, ExtractionWording, wording


def window(text: str, *entities: tuple[str, str | tuple[int, int]], links: str = "") -> Window:
    """Entities as (type, words or offsets), ids e0, e1 ...; links as "0-1 0-2"."""
    found = []
    for number, (label, place) in enumerate(entities):
        start = text.index(place) if isinstance(place, str) else place[0]
        span = (start, start + len(place)) if isinstance(place, str) else place
        found.append(Entity(entity_id=f"e{number}", label=label, spans=(span,)))
    pairs = [link.split("-") for link in links.split()]
    relations = tuple(Relation(label="has", head=f"e{a}", tail=f"e{b}") for a, b in pairs)
    return Window(note_id="n", start=0, end=len(text), text=text, entities=tuple(found), relations=relations)


def answers(found: Window, format: Literal["html", "json"] = "html") -> list[str]:
    return [ExtractionWording(format=format).answer(e) for e in re_examples(found)]


def test_only_entity_types_are_marked_for_ner() -> None:
    example = window("severe chest pain, no fever", ("severity", "severe"), ("problem", "chest pain"))
    assert (
        ExtractionWording().answer(ner_example(example))
        == 'severe <span class="problem">chest pain</span> , no fever'
    )


def test_one_example_for_each_head_whose_modifiers_alone_are_marked() -> None:
    example = window(
        "severe pain, mild fever", ("problem", "fever"), ("problem", "pain"), ("severity", "severe"),
        ("severity", "mild"), links="0-3 1-2",
    )  # fmt: skip
    assert [e.head for e in re_examples(example)] == [Mark("problem", (1, 2)), Mark("problem", (4, 5))]
    assert answers(example) == ['<span class="severity">severe</span> pain , mild fever',
                              'severe pain , <span class="severity">mild</span> fever']  # fmt: skip
    assert answers(example, "json")[0] == '[{"entity": "severity", "text": "severe"}]'


def test_a_head_without_modifiers_has_an_unmarked_answer() -> None:
    assert answers(window("denies pain", ("problem", "pain"))) == ["denies pain"]
    assert answers(window("denies pain", ("problem", "pain")), "json") == ["[]"]


def test_a_modifier_of_two_heads_is_in_both_answers() -> None:
    example = window("no pain or fever", ("problem", "pain"), ("problem", "fever"), ("negation", "no"),
                   links="0-2 1-2")  # fmt: skip
    assert answers(example) == ['<span class="negation">no</span> pain or fever'] * 2


def test_identical_words_are_told_apart_by_their_offsets() -> None:
    result = window("pain, then no pain", ("problem", (14, 18)), ("negation", "no"), links="0-1")
    (example,) = re_examples(result)
    assert example.head == Mark("problem", (4, 5))
    assert '\npain , then no <span class="problem">pain</span>\n' in ExtractionWording().prompt(example)


def test_of_nested_entities_ner_takes_the_outermost_and_counts_the_rest() -> None:
    losses = LostMarks()
    example = window("aspirin allergy", ("drug", "aspirin"), ("problem", "aspirin allergy"))
    assert ner_example(example, losses=losses).answer == (Mark("problem", (0, 2)),)
    assert losses.counts == {"nested or crossing entity": 1}
    assert {e.head for e in re_examples(example)} == {Mark("problem", (0, 2)), Mark("drug", (0, 1))}


def test_a_modifier_inside_its_head_and_inside_another_one_is_kept() -> None:
    example = window("acute left lung pain", ("problem", (0, 20)), ("bodyloc", "left lung"),
                   ("course", "acute"), ("bodyloc", "lung"), links="0-1 0-2 0-3")  # fmt: skip
    marks = re_examples(example)[0].answer
    assert marks == (Mark("course", (0, 1)), Mark("bodyloc", (1, 3)), Mark("bodyloc", (2, 3)))


def test_crossing_modifiers_and_borders_inside_words_are_counted() -> None:
    losses = LostMarks()
    example = window("left lower lobe pain", ("problem", "pain"), ("bodyloc", (0, 10)), ("bodyloc", (5, 15)),
                   ("course", (16, 18)), links="0-1 0-2 0-3")  # fmt: skip
    assert len(re_examples(example, losses=losses)[0].answer) == 2
    assert losses.counts == {"crossing modifier": 1, "border inside a word": 1}


def test_a_discontinuous_entity_is_marked_as_a_whole_and_counted() -> None:
    losses = LostMarks()
    entity = Entity(entity_id="a", label="problem", spans=((0, 4), (10, 14)))
    result = Window(note_id="n", start=0, end=14, text="left lung pain", entities=(entity,))
    assert ner_example(result, losses=losses).answer == (Mark("problem", (0, 3)),)
    assert losses.counts == {"discontinuous": 1}


def test_a_modifier_that_the_inventory_does_not_allow_its_head_is_no_answer() -> None:
    example = window("severe surgery", ("treatment", "surgery"), ("severity", "severe"), links="0-1")
    assert answers(example) == ["severe surgery"]


def test_sentences_without_entities_are_examples_too() -> None:
    note = Note(note_id="n", text="Pain today.\n\nNothing else was found.\n\nHome.",
                entities=(Entity(entity_id="a", label="problem", spans=((0, 4),)),))  # fmt: skip
    examples = [ner_example(found) for found in split_note(note).windows]
    assert [len(example.answer) for example in examples] == [1, 0, 0]


@pytest.mark.parametrize("label", ENTITY_TYPES)
@pytest.mark.parametrize("format", ["html", "json"])
def test_a_question_lists_the_whole_inventory_whatever_the_gold_holds(
    label: str, format: Literal["html", "json"]
) -> None:
    source = locate_words("pain")
    prompt = ExtractionWording(format=format).prompt(head_question("n", source, Mark(label, (0, 1))))
    listed = [name for name in TYPES if f": {DEFINITIONS[name]}\n" in prompt]
    assert set(listed) == set(MODIFIERS[label])
    ner = ExtractionWording(format=format).prompt(ner_example(window("nothing here")))
    assert [name for name in TYPES if f": {DEFINITIONS[name]}\n" in ner] == list(ENTITY_TYPES)


@pytest.mark.parametrize(
    "text", ["{text} {types}", "{{", "}{how}{", '<span class="drug">x</span>', "###", "%s"]
)
def test_a_note_cannot_change_the_question_around_it(text: str) -> None:
    example = ner_example(window(text))
    before, after = ExtractionWording().ner.split("{text}")
    prompt = ExtractionWording().prompt(example)
    assert prompt.endswith(f"\n{example.source.text}{after}")
    assert prompt.count(before.splitlines()[-1]) >= 1
    assert prompt.count("### Text") == 1 + (text == "### Text")


def test_a_backbone_may_bring_its_own_wording() -> None:
    custom = wording({"ner": "<ner>{text}<out>", "re": "<{head}>{text}<out>"})
    example = window("no pain", ("problem", "pain"))
    assert custom.prompt(ner_example(example)) == "<ner>no pain<out>"
    assert custom.prompt(re_examples(example)[0]) == '<problem>no <span class="problem">pain</span><out>'
    assert wording(None) == ExtractionWording()
    assert wording({"ner": "{text}"}, "json") == ExtractionWording(ner="{text}", format="json")


@pytest.mark.parametrize(
    ("given", "message"),
    [({"ner": "Mark it."}, "extraction.ner has no {text}"), ({"NER": "{text}"}, "'NER'")],
)
def test_a_wording_that_cannot_ask_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wording(given)


def test_only_annotated_types_are_asked_for_and_all_types_are_read() -> None:
    text = "severe chest pain , given aspirin"
    result = Window(note_id="n", start=0, end=len(text), text=text)
    example = ner_example(result, ("problem", "severity"))
    assert example.types == ("problem",)
    assert "drug" not in ExtractionWording().prompt(example).split("### Text")[0]
    output = 'severe chest pain , given <span class="drug">aspirin</span>'
    assert [mark.label for mark in ExtractionWording().parse(output, example).marks] == ["drug"]


def test_a_modifier_that_its_head_cannot_have_is_left_out_and_is_no_malformed_output() -> None:
    source = locate_words("given aspirin for two days")
    question = head_question("n", source, Mark("drug", (1, 2)))
    output = '<span class="labvalue">given</span> aspirin <span class="duration">for two days</span>'
    reading = ExtractionWording().parse(output, question)
    assert [mark.label for mark in reading.marks] == ["duration"]
    assert reading.faults["modifier of another head"] == 1
    assert not reading.failed


def test_only_annotated_modifiers_are_asked_for_and_heads_without_any_are_left_out() -> None:
    text = "chest pain , given aspirin"
    head = Entity(entity_id="T1", label="problem", spans=((0, 10),))
    drug = Entity(entity_id="T2", label="drug", spans=((19, 26),))
    result = Window(note_id="n", start=0, end=len(text), text=text, entities=(head, drug))
    examples = re_examples(result, ("problem", "drug", "severity", "bodyloc"))
    assert [(e.head.label, e.types) for e in examples] == [("problem", ("severity", "bodyloc"))]
