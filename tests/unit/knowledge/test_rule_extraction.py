# SPDX-License-Identifier: Apache-2.0
"""From texts to graphs: vocabularies, mentions, what sentences say, and graphs that other programs made."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from medflare.core.errors import DataError
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.nearest_concept import NearestConcept
from medflare.knowledge.rule_extraction import RELATIONS, RuleExtractor, chunks
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.sketches import error_bound, estimated_jaccard
from medflare.knowledge.triples import Triple, jaccard
from medflare.knowledge.vocabulary import Concept, Vocabulary, read_obo

OBO = """format-version: 1.2

[Term]
id: X:1
name: fever
synonym: "pyrexia" EXACT []
synonym: "illness" BROAD []

[Term]
id: X:2
name: obsolete ague
is_obsolete: true

[Term]
id: X:3
name: high fever
synonym: "so-called \\"hot\\" fever" EXACT [source]
is_a: X:1 ! fever

[Typedef]
id: part_of
name: part of
"""


def vocabulary() -> Vocabulary:
    named = {
        "C:flu": ("influenza", "flu"),
        "C:fever": ("fever", "pyrexia"),
        "C:highfever": ("high fever",),
        "C:cough": ("cough",),
        "C:pneumonia": ("pneumonia",),
        "C:aspirin": ("aspirin",),
        "C:allergy": ("allergy",),
    }
    return Vocabulary(Concept(concept_id=key, names=names) for key, names in named.items())


def said(text: str, together: float = 0.0) -> dict[tuple[str, ...], float]:
    """What sentences say beside who has what."""
    graph = RuleExtractor(vocabulary(), together).graph([text])
    return {tuple(triple): confidence for triple, confidence in graph.items() if triple.head != "patient"}


# ---- vocabularies ------------------------------------------------------------------------------------------


def test_an_obo_file_gives_terms_with_exact_synonyms_and_parents(tmp_path: Path) -> None:
    file = tmp_path / "x.obo"
    file.write_text(OBO)
    assert read_obo(file) == [
        Concept(concept_id="X:1", names=("fever", "pyrexia")),
        Concept(concept_id="X:3", names=("high fever", 'so-called "hot" fever'), parents=("X:1",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", r"x\.obo: holds no \[Term\]"),
        ("[Term]\nid: X:1\nname: a\nsynonym: bare", r"x\.obo, line 4: synonym without"),
    ],
)
def test_a_file_that_is_no_obo_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.obo").write_text(text)
    with pytest.raises(DataError, match=message):
        read_obo(tmp_path / "x.obo")
    with pytest.raises(DataError, match=r"absent\.obo: cannot be read"):
        read_obo(tmp_path / "absent.obo")


@pytest.mark.parametrize("name", ["Influenza", "FLU", "  flu", "influenzas"])
def test_a_concept_is_found_by_any_of_its_names(name: str) -> None:
    assert vocabulary().lookup(name) == "C:flu"


def test_plurals_and_words_that_only_look_like_them() -> None:
    terms = Vocabulary(
        [Concept(concept_id="C:1", names=("abscess",)), Concept(concept_id="C:2", names=("allergies",))]
    )
    assert terms.lookup("abscess") == "C:1"
    assert terms.lookup("Allergy") == "C:2"
    assert Vocabulary([Concept(concept_id="C:3", names=("CA",))]).lookup("CA") is None


def test_the_longest_name_is_the_mention_and_offsets_are_the_texts() -> None:
    text = "High   fever, then cough and fevers."
    mentions = vocabulary().mentions(text)
    assert [(text[m.start : m.end], m.concept) for m in mentions] == [
        ("High   fever", "C:highfever"),
        ("cough", "C:cough"),
        ("fevers", "C:fever"),
    ]


def test_a_name_nobody_has_goes_to_the_nearest_concept_or_to_none() -> None:
    def letters(texts):
        return np.array(
            [[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float
        )

    near = NearestConcept(vocabulary(), letters, least=0.9)
    assert near.lookup("Flu") == ("C:flu", 1.0)
    concept, cosine = near.lookup("pneumoniae") or ("", 0.0)
    assert concept == "C:pneumonia"
    assert 0.9 <= cosine < 1.0
    assert near.lookup("xyz") is None


# ---- sentences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("Influenza causes fever.", ("c:flu", "causes", "c:fever")),
        ("The fever was due to influenza.", ("c:flu", "causes", "c:fever")),
        ("Influenza may lead to pneumonia.", ("c:flu", "causes", "c:pneumonia")),
        ("Pyrexia was treated with aspirin.", ("c:aspirin", "treats", "c:fever")),
        ("Aspirin is given for fever.", ("c:aspirin", "treats", "c:fever")),
        ("Influenza presents with high fever.", ("c:flu", "has symptom", "c:highfever")),
        ("Cough is a symptom of flu.", ("c:flu", "has symptom", "c:cough")),
        ("Influenza complicated by pneumonia", ("c:pneumonia", "complicates", "c:flu")),
        ("Pneumonia is associated with cough.", ("c:cough", "associated with", "c:pneumonia")),
    ],
)
def test_words_between_two_concepts_say_how_they_are_related(text: str, triple: tuple[str, ...]) -> None:
    assert set(said(text)) == {triple}
    assert triple[1] in RELATIONS


def test_lists_and_other_sentences_relate_nothing() -> None:
    assert said("Fever, which he treated at home, cough.") == {}
    assert said("He has influenza. It causes him trouble. Aspirin helped.") == {}
    assert said("Fever " + "and so on " * 8 + "causes cough.") == {}


def test_a_doubt_halves_the_confidence_and_a_denied_concept_takes_part_in_nothing() -> None:
    assert said("Possible influenza causes fever.") == {("c:flu", "causes", "c:fever"): 0.5}
    assert said("No fever associated with cough.") == {}


def test_what_stands_together_is_believed_less() -> None:
    assert said("Fever and cough.", together=0.3) == {("c:cough", "occurs with", "c:fever"): 0.3}
    assert said("Fever and cough.") == {}


def test_who_has_what_depends_on_what_the_sentence_says_of_it() -> None:
    graph = RuleExtractor(vocabulary(), 0.0).graph(["Fever. No cough. Possible pneumonia."])
    assert set(graph) == {
        Triple("patient", "has", "c:fever"),
        Triple("patient", "is without", "c:cough"),
        Triple("patient", "may have", "c:pneumonia"),
    }


def test_paragraphs_are_chunks_and_an_empty_text_gives_an_empty_graph() -> None:
    assert chunks("one\ntwo\n\n  \nthree\n") == ["one\ntwo", "three"]
    assert chunks(" \n\n ") == []
    assert RuleExtractor(vocabulary()).graph(["", "nothing known here"]) == {}


def test_two_hospitals_with_other_words_have_the_same_graph() -> None:
    extractor = RuleExtractor(vocabulary())
    one = extractor.graph(["Influenza causes pyrexia."])
    other = extractor.graph(["The FEVER was caused by flu."])
    assert jaccard(one, other) == 1.0


# ---- public data -------------------------------------------------------------------------------------------


def test_questions_under_public_ontologies_make_graphs_whose_sketches_tell_their_overlap(
    public_data: Path,
) -> None:
    if not (public_data / "kg").is_dir() or not (public_data / "qa").is_dir():
        pytest.skip("kg and qa are not on this machine")
    concepts = read_obo(public_data / "kg" / "symp.obo")
    assert len(concepts) == 895
    with open(public_data / "kg" / "doid_hierarchy.tsv", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        concepts += [Concept(concept_id=row["id"], names=(row["label"],)) for row in rows]
    terms = Vocabulary(concepts)
    assert len(terms.named) > 12_000
    lines = (public_data / "qa" / "medqa_us_dev.jsonl").read_text(encoding="utf-8").splitlines()[:300]
    texts = [json.loads(line)["question"] for line in lines]
    extractor = RuleExtractor(terms)
    one, other = extractor.graph(texts[:200]), extractor.graph(texts[100:])
    assert len(one) > 200
    sketcher = Sketcher(SketchKey(bytes(32), "qa"))
    estimate = estimated_jaccard(sketcher.sketch(one), sketcher.sketch(other))
    assert 0.3 < jaccard(one, other) < 0.9
    assert abs(estimate - jaccard(one, other)) <= error_bound(1024, 0.999)
