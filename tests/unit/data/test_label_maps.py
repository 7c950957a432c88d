# SPDX-License-Identifier: Apache-2.0
"""Label maps, task masks and what a note's annotation covers; every loss is counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import note_folders as folders
import pytest
from pydantic import ValidationError

from medflare.core.errors import DataError
from medflare.core.inventory import ENTITY_TYPES, MODIFIERS, TYPES
from medflare.data.records import Note
from medflare.data.settings.label_maps import LABEL_MAPS, targets
from site_builders import read_cohort

OWN = {"Condition": "problem", "Grade": "severity"}


def only(root: Path, **settings: Any) -> Note:
    return read_cohort("notes_jsonl", root, **settings).notes[0]


def labels(note: Note) -> list[str]:
    return [entity.label for entity in note.entities]


@pytest.mark.parametrize("name", LABEL_MAPS)
def test_a_named_map_leads_to_types_of_the_inventory(name: str) -> None:
    assert {value for value in LABEL_MAPS[name].values() if value is not None} <= set(TYPES)
    assert targets(LABEL_MAPS[name]) == tuple(t for t in TYPES if t in LABEL_MAPS[name].values())


def test_native_names_are_mapped_where_the_map_knows_them(tmp_path: Path) -> None:
    root = folders.jsonl(tmp_path, folders.row())
    assert labels(only(root)) == ["problem", "severity"]
    assert labels(only(root, label_map={"Grade": "course"})) == ["problem", "course"]
    assert labels(only(root, label_map={"severity": "course"})) == ["problem", "course"]


def test_labels_that_are_types_stay_and_null_leaves_out(tmp_path: Path) -> None:
    root = folders.jsonl(tmp_path, folders.row())
    cohort = read_cohort("notes_jsonl", root, label_map={"Grade": None})
    assert labels(cohort.notes[0]) == ["problem"]
    assert (cohort.annotation.entities_dropped, cohort.notes[0].relations) == ({"Grade": 1}, ())
    assert cohort.annotation.relations_outside == {"has_severity": 1}


def test_a_label_that_is_neither_mapped_nor_a_type_is_a_fault(tmp_path: Path) -> None:
    ann = folders.ANN.replace("\tseverity", "\tGrade").replace("\tnegation", "\tCue")
    with pytest.raises(DataError) as raised:
        read_cohort("brat", folders.brat(tmp_path, ann=ann))
    assert "T2 at 0:6 is 'Grade', which is no type of the inventory, nor are Cue" in str(raised.value)
    assert "label_map" in str(raised.value)
    mapped = read_cohort("brat", tmp_path, label_map={"Grade": "severity", "Cue": None})
    assert len(mapped.notes[0].entities) == 4


def test_a_link_is_turned_to_begin_at_the_head(tmp_path: Path) -> None:
    ann = folders.ANN.replace("Arg1:T1 Arg2:T2", "Arg1:T2 Arg2:T1")
    note = read_cohort("brat", folders.brat(tmp_path, ann=ann)).notes[0]
    assert folders.links(note) == {("T1", "T2"), ("T1", "T3"), ("T4", "T5")}


def test_links_outside_the_inventory_are_counted_and_no_fault(tmp_path: Path) -> None:
    more = "R4\tcauses Arg1:T1 Arg2:T4\nR5\tin Arg1:T2 Arg2:T3\nR6\tagain Arg1:T2 Arg2:T1\n"
    cohort = read_cohort("brat", folders.brat(tmp_path, ann=folders.ANN + more))
    assert (len(cohort.notes[0].relations), cohort.skipped) == (3, [])
    assert cohort.annotation.relations_outside == {"causes": 1, "in": 1}
    assert cohort.annotation.relations_repeated == {"again": 1}
    assert cohort.annotation.source_relations.total() == 6


def test_a_relation_named_null_is_left_out(tmp_path: Path) -> None:
    cohort = read_cohort("brat", folders.brat(tmp_path), label_map={"hasAttr": None})
    assert (cohort.notes[0].relations, cohort.annotation.relations_outside) == ((), {"hasAttr": 3})
    root = folders.jsonl(tmp_path / "json", folders.row())
    assert only(root, label_map={"Has_grade": None}).relations == ()


def test_a_site_with_ner_alone_keeps_heads_and_says_so(tmp_path: Path) -> None:
    cohort = read_cohort("brat", folders.brat(tmp_path), tasks=("ner",))
    note = cohort.notes[0]
    assert (labels(note), note.relations, note.tasks) == (["problem", "problem"], (), ("ner",))
    assert cohort.annotation.masked == {"severity": 1, "bodyloc": 1, "negation": 1, "relations": 3}


def test_a_site_with_re_alone_keeps_the_heads_it_is_given(tmp_path: Path) -> None:
    note = read_cohort("brat", folders.brat(tmp_path), tasks=("re",)).notes[0]
    assert (len(note.entities), len(note.relations), note.tasks) == (5, 3, ("re",))


def test_what_the_annotators_looked_for_is_the_maps_unless_the_site_says(tmp_path: Path) -> None:
    root = folders.brat(tmp_path)
    assert read_cohort("brat", root).notes[0].annotated is None
    assert read_cohort("brat", root, label_map="mtsamples").notes[0].annotated == TYPES
    assert read_cohort("brat", root, label_map="chia").notes[0].annotated == targets(LABEL_MAPS["chia"])
    note = read_cohort("brat", root, label_map="chia", annotated=("problem", "negation")).notes[0]
    assert note.annotated == ("problem", "negation")


def test_a_task_nobody_annotated_for_is_not_claimed(tmp_path: Path) -> None:
    root = folders.brat(tmp_path)
    assert read_cohort("brat", root, annotated=ENTITY_TYPES).notes[0].tasks == ("ner",)
    assert read_cohort("brat", root, annotated=("negation",)).notes[0].tasks == ("re",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"label_map": "snomed"},
            "no such label map; there are: chia, i2b2_2010, maccrobat, mtsamples, omop, phee",
        ),
        ({"label_map": {"Grade": "grade"}}, "grade is no type of the inventory"),
        ({"annotated": ("problem", "pain")}, "pain is no type of the inventory"),
        ({"tasks": ("ner", "qa")}, "'ner' or 're'"),
    ],
)
def test_wrong_settings_say_what_there_is(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=message):
        read_cohort("brat", folders.brat(tmp_path), **settings)


def test_images_do_not_read_the_settings_of_notes(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="format manifest does not read label_map, tasks"):
        read_cohort("manifest", tmp_path, label_map="chia", tasks=("ner",))


@pytest.mark.parametrize("name", ["maccrobat", "chia", "phee"])
def test_a_named_map_knows_every_label_of_its_corpus(public_data: Path, name: str) -> None:
    rows = [json.loads(line) for path in (public_data / "ie" / name).glob("*.jsonl") for line in path.open()]
    given = Counter(entity["native"] for row in rows for entity in row["entities"])
    cohort = read_cohort("notes_jsonl", public_data / "ie" / name, label_map=name)
    counts = cohort.annotation
    assert set(given) <= set(LABEL_MAPS[name])
    assert counts.source_entities == given
    kept = Counter(label for note in cohort.notes for label in labels(note))
    wanted = Counter[str]()
    for native, number in given.items():
        wanted[LABEL_MAPS[name][native] or ""] += number
    assert counts.entities_dropped.total() == wanted.pop("")
    assert kept == wanted
    linked = sum(len(note.relations) for note in cohort.notes)
    left_out = counts.relations_outside.total() + counts.relations_repeated.total()
    assert linked + left_out == sum(len(row["relations"]) for row in rows)
    for note in cohort.notes:
        types = {entity.entity_id: entity.label for entity in note.entities}
        assert all(types[r.tail] in MODIFIERS[types[r.head]] for r in note.relations)


def test_pooled_sources_keep_their_notes_apart(tmp_path: Path) -> None:
    from medflare.data.load import load_cohort
    from medflare.data.settings.cohort import CohortConfig
    from medflare.data.settings.site import SiteConfig

    for place in ("a", "b"):
        for number in range(6):
            folders.brat(tmp_path / place, name=f"n{number}")
    one, other = (CohortConfig(format="brat", root=tmp_path / place) for place in ("a", "b"))
    pooled = load_cohort(SiteConfig(cohort=(one, other))).notes
    assert len({note.note_id for note in pooled}) == len({note.patient_id for note in pooled}) == 12
    twice = (one.model_copy(update={"tasks": ("ner",)}), one.model_copy(update={"tasks": ("re",)}))
    views = load_cohort(SiteConfig(cohort=twice)).notes
    assert (len({note.note_id for note in views}), len({note.patient_id for note in views})) == (12, 6)
    assert len({(note.patient_id, note.split) for note in views}) == 6


def test_a_limit_takes_the_same_few_notes(tmp_path: Path) -> None:
    for number in range(9):
        folders.brat(tmp_path, name=f"n{number}", text=f"{folders.TEXT}\nNote {number}.")
    few = [read_cohort("brat", tmp_path, limit=4).notes for _ in range(2)]
    assert len(few[0]) == 4
    assert few[0] == few[1]
