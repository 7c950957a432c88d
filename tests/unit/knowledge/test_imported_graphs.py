# SPDX-License-Identifier: Apache-2.0
"""Graphs of EDC, GreenKGC and AutoAlign: their own forms are read, and what is none of them is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medflare.core.errors import DataError
from medflare.knowledge.imported_graphs import read_columns, read_edc, read_numbered, read_same
from medflare.knowledge.naming import Naming, representatives
from medflare.knowledge.nearest_concept import NearestConcept, characters
from medflare.knowledge.triples import Triple
from medflare.knowledge.vocabulary import Concept, Vocabulary

FLU = Vocabulary(
    [
        Concept(concept_id="C:flu", names=("influenza", "flu")),
        Concept(concept_id="C:fever", names=("fever", "pyrexia")),
        Concept(concept_id="C:haem", names=("hemorrhage",)),
    ]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "graph.txt"


def test_columns_may_carry_a_confidence_and_zero_is_left_out(file: Path) -> None:
    file.write_text("# made elsewhere\na\tb\tc\t0.9\nd\te\tf\n\ng\th\ti\t0\n")
    assert list(read_columns(file)) == [(Triple("a", "b", "c"), 0.9), (Triple("d", "e", "f"), 1.0)]


EDC = "[['Flu', 'has symptom', 'high_fever'], None]\n[]\n[[\"Crohn's disease\", 'is a', 'x][y']]"


@pytest.mark.parametrize("text", [EDC, EDC.replace("\n", "")], ids=["a line each", "one after the other"])
def test_lists_of_edc_are_read_with_or_without_line_ends(file: Path, text: str) -> None:
    file.write_text(text)
    assert [triple for triple, _ in read_edc(file)] == [
        Triple("Flu", "has symptom", "high fever"),
        Triple("Crohn's disease", "is a", "x][y"),
    ]


def test_numbers_get_their_names_and_a_reciprocal_relation_turns_the_triple(file: Path) -> None:
    file.with_name("entities.dict").write_text("0\tflu\n1\tfever\n")
    file.with_name("relations.dict").write_text("0\tcauses\n1\tis a\n")
    file.write_text("0\t0\t1\t0.75\n1 2 0\n")
    assert list(read_numbered(file)) == [
        (Triple("flu", "causes", "fever"), 0.75),
        (Triple("flu", "causes", "fever"), 1.0),
    ]


def test_pairs_come_as_columns_or_as_addresses(file: Path) -> None:
    same = "<http://www.w3.org/2002/07/owl#sameAs>"
    file.write_text(f"<http://a.org/r/Heart_Attack> {same} <http://b.org/k#MI%281%29> .\ngrippe\tflu\n")
    assert list(read_same(file)) == [("Heart Attack", "MI(1)"), ("grippe", "flu")]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_columns, "a\tb\n", "line 1: 'a\tb'; expected head, relation, tail"),
        (read_columns, "a\tb\tc\t2\n", "confidence in"),
        (read_columns, "a\tb\tc\tnan\n", "confidence in"),
        (read_edc, "a | b | c\n", "is not EDC's output"),
        (read_edc, "[['a', 'b']]\n", "is not EDC's output"),
        (read_edc, "[['a', 'b', 'c']\n", "is not EDC's output"),
        (read_numbered, "0 0 7\n", "numbers of head, relation and tail"),
        (read_numbered, "0 2 0\n", "numbers of head, relation and tail"),
        (read_same, "alone\n", "expected two names"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(file: Path, read, text: str, message: str) -> None:
    file.with_name("entities.dict").write_text("0\tflu\n")
    file.with_name("relations.dict").write_text("0\tcauses\n")
    file.write_text(text)
    with pytest.raises(DataError, match=r"graph\.txt") as refused:
        list(read(file))
    assert message in str(refused.value)


def test_a_number_of_two_names_is_refused(file: Path) -> None:
    """The later name would have been that of every triple with the number."""
    file.with_name("relations.dict").write_text("0\tcauses\n")
    file.with_name("entities.dict").write_text("0\tflu\n1\tfever\n0\tflu\n")
    file.write_text("0 0 1\n")
    assert [triple.head for triple, _ in read_numbered(file)] == ["flu"]
    file.with_name("entities.dict").write_text("0\tflu\n1\tfever\n0\tcough\n")
    with pytest.raises(DataError, match=r"entities\.dict, line 3: .*no number of two names"):
        list(read_numbered(file))


def test_a_dictionary_that_is_missing_is_named(file: Path) -> None:
    file.write_text("0 0 0\n")
    with pytest.raises(DataError, match=r"entities\.dict: cannot be read"):
        list(read_numbered(file))


# ---- names -------------------------------------------------------------------------------------------------


def test_representatives_do_not_depend_on_the_order_of_pairs() -> None:
    pairs = [("c", "b"), ("B", "a"), ("x", "y")]
    expected = {"a": "a", "b": "a", "c": "a", "x": "x", "y": "x"}
    assert representatives(pairs) == expected
    assert representatives([(y, x) for x, y in reversed(pairs)]) == expected


def test_a_name_goes_to_the_concept_of_its_alias_and_else_to_the_first_alias() -> None:
    naming = Naming(FLU, representatives([("grippe", "Influenza"), ("mi", "heart attack")]))
    given = [(Triple("Grippe", "causes", "pyrexia"), 0.5), (Triple("MI", "causes", "Odd"), 1.0)]
    assert list(naming.named(given)) == [
        (Triple("C:flu", "causes", "C:fever"), 0.5),
        (Triple("heart attack", "causes", "odd"), 1.0),
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("fever", "Caused By", "flu"), ("C:flu", "causes", "C:fever")),
        (("flu", "has_symptom", "fever"), ("C:flu", "has symptom", "C:fever")),
        (("flu", "not associated with", "fever"), ("C:flu", "not associated with", "C:fever")),
        (("flu", "occurs without", "fever"), ("C:flu", "occurs without", "C:fever")),
        (("flu", "Resembles", "fever"), ("C:flu", "Resembles", "C:fever")),
        (("influenza", "Linked to", "pyrexia"), ("C:fever", "associated with", "C:flu")),
        (("pyrexia", "occurs with", "flu"), ("C:fever", "occurs with", "C:flu")),
    ],
)
def test_a_relation_gets_our_name_and_its_direction(
    given: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert [tuple(triple) for triple, _ in Naming(FLU).named([(Triple(*given), 1.0)])] == [expected]


def test_a_name_that_is_near_costs_confidence() -> None:
    names = [name for concept in FLU.concepts.values() for name in concept.names]
    naming = Naming(FLU, near=NearestConcept(FLU, characters(names), 0.6))
    ((triple, confidence),) = naming.named([(Triple("haemorrhage", "causes", "zzz"), 1.0)])
    assert triple == Triple("C:haem", "causes", "zzz")
    assert 0.6 <= confidence < 1.0


def test_letters_know_spelling_and_no_meaning() -> None:
    near = NearestConcept(FLU, characters(["influenza", "flu", "fever", "pyrexia", "hemorrhage"]), 0.6)
    concept, cosine = near.lookup("influensa") or ("", 0.0)
    assert concept == "C:flu"
    assert 0.6 <= cosine < 1.0
    assert near.lookup("high temperature") is None
    assert near.lookup("PYREXIA") == ("C:fever", 1.0)


def test_many_names_are_answered_as_one_by_one() -> None:
    near = NearestConcept(FLU, lambda texts: np.array([[len(t), 1.0] for t in texts]), 0.99)
    names = ["abcdefghij", "flu", "abcdefghij", "x"]
    assert near.resolve(names) == {name: near.lookup(name) for name in names}


def test_an_empty_vocabulary_is_near_to_nothing() -> None:
    assert NearestConcept(Vocabulary([]), characters([]), 0.1).lookup("fever") is None
