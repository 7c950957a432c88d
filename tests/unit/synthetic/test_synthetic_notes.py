# SPDX-License-Identifier: Apache-2.0
"""Facts about the synthetic notes: gold spans, the inventory, house styles, corrupted labels, files."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml

from medflare.core.inventory import ENTITY_TYPES, MODIFIERS, TYPES
from medflare.data.readers import read_source
from medflare.data.settings.cohort import CohortConfig
from medflare.synthetic.notes import (
    NOTE_HOSPITALS,
    NOTE_STYLES,
    UNSEEN_NOTES,
    NotesProfile,
    corrupt_labels,
    generate_notes,
    pretraining_note_hospitals,
    write_notes_demo,
    write_notes_hospital,
)
from medflare.synthetic.notes.grammar import Writer, is_withheld, stem_of
from medflare.synthetic.notes.lexicon import lexicon
from medflare.synthetic.notes.markup import parse
from medflare.synthetic.notes.phrases import SHARED

ONE, TWO, THREE = NOTE_HOSPITALS
EVERYONE = (*NOTE_HOSPITALS, UNSEEN_NOTES)
STYLES = {
    **{profile.style: profile for profile in EVERYONE},
    "dictated": next(p for p in pretraining_note_hospitals() if p.style == "dictated"),
}
FREE = {"bodyloc", "course", "severity"}  # guideline v1.1: only these may overlap the entity


@pytest.fixture(scope="module", params=sorted(STYLES))
def notes(request):
    return list(generate_notes(STYLES[request.param], 60))


def said(note, entity):
    return " ".join(note.text[start:end] for start, end in entity.spans)


def overlap(a, b):
    return any(s < f and e < t for s, t in a.spans for e, f in b.spans)


def test_a_modifier_inside_its_head_is_marked_where_it_stands():
    text, entities, relations = parse("Denies [problem a|her [bodyloc >a|left knee] pain].")
    assert text == "Denies her left knee pain."
    assert [(e.label, text[slice(*e.spans[0])]) for e in entities] == [
        ("problem", "her left knee pain"),
        ("bodyloc", "left knee"),
    ]
    assert [(r.head, r.tail) for r in relations] == [("T1", "T2")]


def test_one_modifier_has_several_heads():
    _, entities, relations = parse("[negation >a,b|no] [problem a|fever] or [problem b|rash]")
    assert {e.entity_id: e.label for e in entities} == {"T1": "negation", "T2": "problem", "T3": "problem"}
    assert [(r.head, r.tail) for r in relations] == [("T2", "T1"), ("T3", "T1")]


def test_fragments_of_one_head_are_one_entity():
    text, entities, _ = parse("[problem a,b|pain in the] [problem a|wrist] and [problem b|ankle]")
    assert [e.spans for e in entities] == [((0, 11), (22, 27)), ((0, 17),)]
    assert text[22:27] == "ankle"


@pytest.mark.parametrize(
    ("noun", "article"),
    [
        ("MRI", "an"),
        ("CT", "a"),
        ("ultrasound", "an"),
        ("urinalysis", "a"),
        ("8-mm stone", "an"),
        ("EEG", "an"),
    ],
)
def test_the_article_goes_by_the_sound(noun, article):
    assert parse(f"[test a|a(n) {noun}]")[0] == f"{article} {noun}"


def test_markup_without_its_head_is_refused():
    with pytest.raises(ValueError, match="negation"):
        parse("[negation >b|no] [problem a|fever]")


def test_two_entities_with_one_key_are_refused():
    with pytest.raises(ValueError, match="same key"):
        parse("[problem a|fever] and [problem a|rash]")


def test_nothing_of_the_grammar_is_left_in_the_text(notes):
    for note in notes:
        assert not re.search(
            r"[\[\]{}|@^~_]|a\(n\)|NAME|VALUE|RANGE|STRENGTH|OFTEN|ROUTE|\r|  | ,", note.text
        ), note.text


def test_spans_are_words_of_the_text(notes):
    for note in notes:
        for entity in note.entities:
            assert entity.label in TYPES
            for start, end in entity.spans:
                words = note.text[start:end]
                assert 0 <= start < end <= len(note.text)
                assert words == words.strip()
                assert "\n" not in words
                assert re.search(r"\w|[-+?]", words)


def test_spans_begin_and_end_at_words(notes):
    for note in notes:
        for entity in note.entities:
            for start, end in entity.spans:
                joined = note.text[start - 1 : start + 1] if start else ""
                assert not re.fullmatch(r"[a-z]{2}|[A-Z]{2}", joined) or joined[0] == "x", said(note, entity)
                assert not re.fullmatch(r"[a-z]{2}", note.text[end - 1 : end + 1]), said(note, entity)


def test_every_type_occurs_in_sixty_notes(notes):
    assert {entity.label for note in notes for entity in note.entities} == set(TYPES)


def test_modifiers_hang_on_heads_that_may_have_them(notes):
    for note in notes:
        label = {entity.entity_id: entity.label for entity in note.entities}
        assert len(label) == len(note.entities)
        for relation in note.relations:
            assert label[relation.tail] in MODIFIERS[label[relation.head]]
        linked = {relation.tail for relation in note.relations}
        assert linked == {name for name, kind in label.items() if kind not in ENTITY_TYPES}


def test_only_place_course_and_severity_overlap_an_entity(notes):
    for note in notes:
        heads = [entity for entity in note.entities if entity.label in ENTITY_TYPES]
        others = [e for e in note.entities if e.label not in FREE and e.label not in ENTITY_TYPES]
        for modifier in others:
            assert not any(overlap(modifier, head) for head in heads), said(note, modifier)


def test_hard_cases_occur_but_stay_rare(notes):
    relations = [(note, r) for note in notes for r in note.relations]
    entities = [entity for note in notes for entity in note.entities]
    split = sum(len(entity.spans) > 1 for entity in entities)
    assert 0 <= split < 0.01 * len(entities)
    tails = Counter((note.note_id, r.tail) for note, r in relations)
    assert sum(count > 1 for count in tails.values()) > 20


def test_some_relations_cross_sentences():
    crossing = total = 0
    for note in (note for profile in EVERYONE for note in generate_notes(profile, 100)):
        spans = {e.entity_id: e.spans for e in note.entities}
        for r in note.relations:
            total += 1
            first, last = sorted((spans[r.head], spans[r.tail]))
            crossing += bool(re.search(r"\. [A-Z]", note.text[first[-1][1] : last[0][0]]))
    assert 0.002 < crossing / total < 0.05


def test_the_same_word_has_two_types():
    types = {}
    for note in (note for profile in EVERYONE for note in generate_notes(profile, 150)):
        for entity in note.entities:
            if entity.label in ENTITY_TYPES:
                types.setdefault(said(note, entity).lower().removeprefix("the "), set()).add(entity.label)
    assert {"drug", "test"} <= types["calcium"]
    assert {"drug", "test"} <= types["lithium"]
    assert types["stress"] == {"problem"}
    assert any(name.endswith("stress test") and kinds == {"test"} for name, kinds in types.items())


def test_notes_have_a_note_s_length(notes):
    for note in notes:
        sentences = [part for part in re.split(r"(?<=[.\d])\s+(?=[A-Z\d])|\n|: ", note.text) if part.strip()]
        assert 3 <= len(sentences) <= 60
        assert 25 <= len(note.text.split()) <= 320


def test_text_is_not_all_ascii_and_has_no_carriage_returns():
    text = "".join(note.text for p in EVERYONE for note in generate_notes(p, 60))
    assert {"°", "µ"} <= set(text)
    assert "\r" not in text


def test_same_seed_gives_the_same_notes_and_more_do_not_change_the_first():
    assert list(generate_notes(TWO, 5)) == list(generate_notes(TWO, 12))[:5]


def test_notes_are_the_same_on_every_machine():
    """Golden digest: embedded models are trained on these words, so a change of wording is a decision."""
    text = "\n".join(note.text for profile in EVERYONE for note in generate_notes(profile, 20))
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "6a681b844dcdf1ee"


def test_seeds_and_sites_share_no_note():
    hospitals = [p.with_seed(seed) for p in EVERYONE for seed in (0, 1, 2)]
    notes = [note for hospital in hospitals for note in generate_notes(hospital, 60)]
    for field in ("text", "note_id", "patient_id"):
        assert len({getattr(note, field) for note in notes}) == len(notes)


@pytest.mark.parametrize("setting", [{"style": "poetic"}, {"emphasis": {"astrology": 1.0}}])
def test_profiles_refuse_what_does_not_exist(setting):
    with pytest.raises(ValueError, match="choose from"):
        replace(ONE, **setting)


def test_the_lexicon_is_large():
    def size(*tables):
        return len({stem_of(entry) for table in tables for entries in table.values() for entry in entries})

    assert size(lexicon().diseases, lexicon().symptoms, lexicon().signs) >= 120
    assert size(lexicon().operations, lexicon().therapies) >= 60
    assert size(lexicon().labs, lexicon().studies) >= 70
    assert size(lexicon().drugs) >= 120


def test_about_a_fifth_of_what_a_test_note_marks_is_new_to_the_site():
    for profile in EVERYONE:
        notes = list(generate_notes(profile, 200))
        known = {(e.label, said(n, e).lower()) for n in notes[:60] for e in n.entities}
        tested = [(e.label, said(n, e).lower()) for n in notes[60:] for e in n.entities]
        assert 0.1 < sum(found not in known for found in tested) / len(tested) < 0.35


def test_sites_use_words_that_others_do_not():
    words = [
        {said(n, e).lower() for n in generate_notes(p, 150) for e in n.entities if e.label == "drug"}
        for p in NOTE_HOSPITALS
    ]
    for mine in words:
        others = set().union(*(w for w in words if w is not mine))
        assert len(mine - others) > 10
        assert len(mine & others) > 10


def test_pretraining_hospitals_know_neither_the_whole_lexicon_nor_the_unseen_style():
    for profile in pretraining_note_hospitals(12):
        assert profile.style != UNSEEN_NOTES.style
        missing = [
            stem_of(drug)
            for table in lexicon().drugs.values()
            for drug in table
            if is_withheld(stem_of(drug), profile.withheld)
        ]
        assert 25 < len(missing) < 70


def test_no_list_names_a_thing_twice():
    writer = Writer(ONE, SHARED, np.random.default_rng(1))
    names = [stem_of(writer.entry(lexicon().diseases)) for _ in range(8)]
    assert len({name.removesuffix("+") for name in names}) == 8


def test_every_rule_of_every_house_can_be_written():
    for style, house in NOTE_STYLES.items():
        profile = NotesProfile(name="site", style=style, emphasis={"cardiology": 1, "infection": 1})
        assert {rule for section in house.sections for rule in section.rules} <= set(house.rules)
        for rule in (rule for section in house.sections for rule in section.rules):
            for number, pattern in enumerate(sorted(set(house.rules[rule]))):
                writer = Writer(profile, {**SHARED, **house.rules}, np.random.default_rng(number))
                assert parse(writer.expand(pattern, "k"))[0]


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_corrupted_labels_are_valid_and_about_as_many_as_asked(share):
    clean = list(generate_notes(ONE, 60))
    dirty = corrupt_labels(clean, share, seed=3)
    entities = changed = 0
    for before, after in zip(clean, dirty, strict=True):
        assert before.text == after.text
        names = {e.entity_id for e in after.entities}
        assert all({r.head, r.tail} <= names for r in after.relations)
        assert all(0 <= s < t <= len(after.text) for e in after.entities for s, t in e.spans)
        assert all(e.label in TYPES for e in after.entities)
        entities += len(before.entities)
        changed += len(set(before.entities) - set(after.entities))
    assert changed / entities == pytest.approx(share, abs=0.03)


def test_corrupting_rewires_relations():
    clean = list(generate_notes(TWO, 60))
    dirty = corrupt_labels(clean, 0.3, seed=3)
    for before, after in zip(clean, dirty, strict=True):
        assert len(after.relations) <= len(before.relations)
    kept = sum(len(set(b.relations) & set(a.relations)) for b, a in zip(clean, dirty, strict=True))
    total = sum(len(note.relations) for note in clean)
    assert 0.4 < kept / total < 0.8


def test_nothing_to_corrupt_leaves_the_notes_and_more_than_all_is_refused():
    notes = list(generate_notes(ONE, 3))
    assert corrupt_labels(notes, 0.0, seed=1) == notes
    with pytest.raises(ValueError, match="0 to 1"):
        corrupt_labels(notes, 1.5, seed=1)


@pytest.mark.parametrize(("format", "reader"), [("jsonl", "notes_jsonl"), ("brat", "brat")])
@pytest.mark.parametrize("profile", EVERYONE, ids=lambda profile: profile.style)
def test_notes_come_back_from_their_files(tmp_path, profile, format, reader):
    folder = write_notes_hospital(profile, tmp_path / "site", 30, format)
    source = read_source(CohortConfig(format=reader, root=folder))
    written = {note.note_id: note for note in generate_notes(profile, 30)}
    assert {note.note_id for note in source.notes} == set(written)
    for note in source.notes:
        mine = written[note.note_id]
        assert (note.text, note.entities, note.relations) == (mine.text, mine.entities, mine.relations)
    assert not source.has_split
    assert not source.skipped


def test_a_corrupted_hospital_differs_from_the_clean_one(tmp_path):
    clean = write_notes_hospital(ONE, tmp_path / "a", 5, "jsonl") / "notes.jsonl"
    dirty = write_notes_hospital(ONE, tmp_path / "b", 5, "jsonl", corrupted=0.3) / "notes.jsonl"
    rows = [[json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in (clean, dirty)]
    assert [r["text"] for r in rows[0]] == [r["text"] for r in rows[1]]
    assert [r["entities"] for r in rows[0]] != [r["entities"] for r in rows[1]]


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="brat, jsonl"):
        write_notes_hospital(ONE, tmp_path, 1, "xml")


def test_the_demo_is_a_simulation_s_folder(tmp_path):
    assert write_notes_demo(tmp_path, notes=3) == {"site-1": 3, "site-2": 3, "site-3": 3, "site-4": 3}
    sites = yaml.safe_load((tmp_path / "site.yaml").read_text("utf-8"))["sites"]
    formats = {name: site["cohort"]["format"] for name, site in sites.items()}
    hospitals = ("site-1", "site-2", "site-3", "site-4")
    assert formats == dict(zip((*hospitals, "server"), ("brat", *["notes_jsonl"] * 4), strict=True))
    assert {sites[name]["validation"]["root"] for name in hospitals} == {sites["server"]["cohort"]["root"]}
    assert len(list((tmp_path / "site-1").glob("*.ann"))) == 3
    for name, site in sites.items():
        cohort = CohortConfig(format=site["cohort"]["format"], root=tmp_path / site["cohort"]["root"])
        assert len(read_source(cohort).notes) == (5 if name == "server" else 3), name
