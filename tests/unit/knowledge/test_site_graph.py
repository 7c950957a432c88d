# SPDX-License-Identifier: Apache-2.0
"""`knowledge` of site.yaml: from texts to a graph and its sketch, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from medflare.core.config import parse
from medflare.core.errors import ConfigError, DataError
from medflare.core.variables import with_absolute_paths
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import load_site_file
from medflare.knowledge.cohort_texts import KnowledgeText
from medflare.knowledge.site_graph import site_graph, site_sketch
from medflare.knowledge.sketches import estimated_jaccard
from medflare.knowledge.triples import Triple, jaccard
from medflare.recipes.simulate import prepare_workspace

OBO = """[Term]
id: D:1
name: influenza
synonym: "flu" EXACT []

[Term]
id: S:1
name: fever
synonym: "pyrexia" EXACT []

[Term]
id: S:2
name: cough
"""
ONE = "Influenza causes fever."
OTHER = "Pyrexia was due to flu."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "terms.obo").write_text(OBO)
    (tmp_path / "sketch.key").write_text("ab" * 32)
    return tmp_path


def texts(*given: str) -> list[KnowledgeText]:
    return [KnowledgeText(text) for text in given]


def settings(folder: Path, **changes: object) -> KnowledgeConfig:
    given = {"vocabulary": "terms.obo", "key": "sketch.key", **changes}
    return with_absolute_paths(parse(KnowledgeConfig, given, "site.yaml"), folder)


def test_other_words_for_the_same_facts_give_the_same_sketch(folder: Path) -> None:
    one, other = (site_sketch(settings(folder), texts(text)) for text in (ONE, OTHER))
    assert estimated_jaccard(one, other) == 1.0
    assert len(one.values) == 1024


def test_without_alignment_the_same_facts_in_other_words_have_nothing_in_common(folder: Path) -> None:
    one, other = (site_graph(settings(folder, align=False), texts(text)) for text in (ONE, OTHER))
    assert Triple("influenza", "causes", "fever") in one
    assert Triple("flu", "causes", "pyrexia") in other
    assert jaccard(one, other) == 0.0


def test_a_table_is_a_vocabulary_and_rows_of_one_id_are_synonyms(folder: Path) -> None:
    (folder / "own.tsv").write_text("id\tlabel\nO:1\tsniffles\nO:1\trunny nose\n")
    config = settings(folder, vocabulary=["terms.obo", "own.tsv"])
    graph = site_graph(config, texts("Flu causes a runny nose."))
    assert Triple("d:1", "causes", "o:1") in graph


def test_graphs_made_elsewhere_are_added_and_unsure_triples_left_out(folder: Path) -> None:
    (folder / "more.tsv").write_text("Flu\thas symptom\tcough\t0.9\nFlu\tcauses\todd thing\t0.2\n")
    config = settings(folder, triples="more.tsv", extractor="none", least=0.5)
    assert site_graph(config, texts(ONE)) == {Triple("d:1", "has symptom", "s:2"): 0.9}


def test_an_imported_graph_says_the_same_as_a_text(folder: Path) -> None:
    (folder / "more.tsv").write_text("fever\tCaused By\tinfluenza\nPyrexia\tAssociated_with\tCough\n")
    imported = settings(folder, extractor="none", triples="more.tsv")
    graph = site_graph(settings(folder), texts(f"{ONE} Fever is associated with cough."))
    assert site_graph(imported, []).keys() == {t for t in graph if t.head != "patient"}
    assert set(site_graph(imported.model_copy(update={"align": False}), [])) == {
        Triple("fever", "caused by", "influenza"),
        Triple("pyrexia", "associated_with", "cough"),
    }


@pytest.mark.parametrize("line", ["flu\tassociated with\tpyrexia", "fever\tassociated with\tinfluenza"])
def test_synonyms_and_directions_of_a_symmetric_relation_are_one_triple(folder: Path, line: str) -> None:
    (folder / "more.tsv").write_text(line + "\n")
    graph = site_graph(settings(folder, extractor="none", triples="more.tsv"), [])
    assert set(graph) == {Triple("d:1", "associated with", "s:1")}


def test_names_of_graphs_made_elsewhere_become_concepts_by_pairs_and_by_spelling(folder: Path) -> None:
    (folder / "kg.txt").write_text("[['la grippe', 'causes', 'pyrexya'], ['flu', 'causes', 'odd_thing']]")
    (folder / "same.tsv").write_text("la grippe\tInfluenza\n")
    config = settings(
        folder,
        extractor="none",
        triples={"path": "kg.txt", "form": "edc"},
        same="same.tsv",
        nearest=0.5,
    )
    graph = site_graph(config, [])
    assert set(graph) == {Triple("d:1", "causes", "s:1"), Triple("d:1", "causes", "odd thing")}
    assert 0.5 <= graph[Triple("d:1", "causes", "s:1")] < 1.0
    assert set(site_graph(config.model_copy(update={"align": False}), [])) == {
        Triple("la grippe", "causes", "pyrexya"),
        Triple("flu", "causes", "odd thing"),
    }


def test_hidden_states_of_the_sites_model_may_say_what_is_near(folder: Path) -> None:
    (folder / "more.tsv").write_text("flu\tcauses\tcoughing\n")
    config = settings(folder, extractor="none", triples="more.tsv", nearest=0.01, nearest_by="backbone")
    ((triple, confidence),) = site_graph(config, []).items()
    assert triple.tail in ("s:1", "s:2")
    assert 0.01 <= confidence < 1.0


def test_a_weighted_sketch_knows_confidences_and_a_set_does_not(folder: Path) -> None:
    given = texts("Influenza causes fever.", "Possible influenza causes fever.")
    for kind, alike in (("set", True), ("weighted", False)):
        config = settings(folder, kind=kind, triples="more.tsv", extractor="none")
        sketches = []
        for sure in (1.0, 0.5):
            (folder / "more.tsv").write_text(f"flu\tcauses\tfever\t{sure}\nflu\tcauses\tcough\t1\n")
            sketches.append(site_sketch(config, given))
        assert (estimated_jaccard(*sketches) == 1.0) is alike


def test_an_empty_graph_is_an_empty_sketch_and_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        sketch = site_sketch(settings(folder), texts("nothing that is known"))
    assert sketch.empty
    assert "graph of this site is empty: 1 texts, 5 names" in caplog.text


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"key": "absent.key"}, ConfigError, r"absent\.key: cannot be read as a sketch key"),
        ({"key": "terms.obo"}, ConfigError, r"terms\.obo: cannot be read as a sketch key"),
        ({"vocabulary": "absent.obo"}, DataError, r"absent\.obo: cannot be read as an OBO"),
        ({"vocabulary": "sketch.key"}, DataError, r"sketch\.key: holds no \[Term\]"),
        ({"vocabulary": "absent.tsv"}, DataError, r"absent\.tsv: cannot be read as a table"),
        ({"triples": "absent.tsv"}, DataError, r"absent\.tsv: cannot be read as a list of triples"),
        ({"vocabulary": []}, ConfigError, "name one or more files"),
        ({"extractor": "none"}, ConfigError, "needs `triples`"),
        ({"nearest": 0.8}, ConfigError, "rules find known names"),
        ({"triples": {"path": "x", "form": "rdf"}}, ConfigError, "form"),
        ({"extractor": "model", "same": "absent.nt"}, ConfigError, "embedded one"),
        ({"same": "absent.nt"}, DataError, r"absent\.nt: cannot be read as pairs"),
        ({"hashes": 11}, ConfigError, "hashes is 11; expected an even number"),
        ({"key": "${MEDFLARE_NO_SUCH}/k"}, ConfigError, "MEDFLARE_NO_SUCH is not set"),
        ({"vocabularies": "x"}, ConfigError, "Did you mean 'vocabulary'"),
    ],
)
def test_what_cannot_be_used_is_named(
    folder: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        site_sketch(settings(folder, **changes), texts(ONE))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id\tlabel\tlabel\nx\ty\tz\n", "id and label, each once"),
        ("id\tname\nx\ty\n", "columns id and label"),
        ("id\tlabel\nx\t\n", "line 2: id or label is empty"),
    ],
)
def test_a_table_with_other_columns_is_refused(folder: Path, table: str, message: str) -> None:
    (folder / "own.tsv").write_text(table)
    with pytest.raises(DataError, match=message):
        site_graph(settings(folder, vocabulary="own.tsv"), texts(ONE))


SITE = """
cohort: {format: manifest, root: data}
knowledge:
  vocabulary: [terms.obo, /elsewhere/own.tsv]
  key: sketch.key
  triples: [edc.tsv, {path: kg.txt, form: edc}]
  same: s.nt
"""


@pytest.mark.parametrize("copied", [False, True], ids=["in its folder", "copied by the simulator"])
def test_relative_paths_count_from_the_folder_of_site_yaml(tmp_path: Path, copied: bool) -> None:
    indented = "\n".join(f"    {line}" for line in SITE.splitlines())
    file = tmp_path / "sites.yaml"
    file.write_text(f"sites:\n  a:{indented}\n")
    if copied:
        prepare_workspace(tmp_path / "work", file)
        file = tmp_path / "work" / "local" / "site.yaml"
    knowledge = load_site_file(file)["a"].knowledge
    assert knowledge is not None
    assert knowledge.vocabulary == (tmp_path / "terms.obo", Path("/elsewhere/own.tsv"))
    assert (knowledge.key, knowledge.same) == (tmp_path / "sketch.key", (tmp_path / "s.nt",))
    paths = [(graph.path, graph.form) for graph in knowledge.triples]
    assert paths == [(tmp_path / "edc.tsv", "columns"), (tmp_path / "kg.txt", "edc")]


def test_a_site_without_the_block_has_no_knowledge(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cohort: {format: manifest, root: data}\n")
    assert load_site_file(tmp_path / "site.yaml")[""].knowledge is None
