# SPDX-License-Identifier: Apache-2.0
"""RadGraph F1 and RaTEScore: numbers by hand, and small networks in the files of the released ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from medflare.evaluation.radgraph_f1 import graph_f1
from medflare.evaluation.rate_score import LONG_REPORTS, OPPOSED, entities_of, pair_score
from medflare.evaluation.scorers import optional_statistics
from medflare.models.radgraph import RadGraph, RadGraphEntity, report_words

REFERENCES = ["no pleural effusion . the heart is enlarged .", "clear lungs", "clear lungs"]
DRAFTS = ["the heart is enlarged .", "clear lungs", ""]


def test_radgraph_f1_compares_entities_whether_they_relate_and_how() -> None:
    """Of four and three entities two are shared; one of these relates on both sides, to another word."""
    present, absent = "Observation::definitely present", "Observation::definitely absent"
    part = "Anatomy::definitely present"
    reference = [
        RadGraphEntity("heart", part, ()),
        RadGraphEntity("enlarged", present, (("located_at", 0),)),
        RadGraphEntity("pleural", part, ()),
        RadGraphEntity("effusion", absent, (("located_at", 2),)),
    ]
    draft = [
        RadGraphEntity("Effusion", absent, (("located_at", 1),)),
        RadGraphEntity("lung", part, ()),
        RadGraphEntity("heart", part, (("modify", 1),)),
    ]
    assert graph_f1(reference, draft) == pytest.approx((2 * 2 / 7, 2 * 1 / 7, 0.0))
    assert graph_f1(reference, reference) == (1.0, 1.0, 1.0)
    assert graph_f1(reference, []) == (0.0, 0.0, 0.0)


def test_words_of_a_report_are_cut_as_radgraphs() -> None:
    assert report_words("Chest x-ray:\n 3.5 cm (stable).") == [
        *("Chest", "x", "-", "ray", ":", "3", ".", "5", "cm", "(", "stable", ")", "."),
    ]


@pytest.fixture(scope="module")
def archive(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as radgraph-xl.tar.gz unpacks, of random weights, and the BERT beside it."""
    from transformers import AutoModel

    folder = tmp_path_factory.mktemp("radgraph")
    shutil.copytree(tiny_encoder, folder / "tiny-bert")
    root = folder / "radgraph-xl"
    (root / "vocabulary").mkdir(parents=True)
    entities = ["", "Observation::definitely present", "Anatomy::definitely present"]
    relations = ["located_at", "modify", "suggestive_of"]
    for kind, labels in (("ner", entities), ("relation", relations)):
        text = "".join(f"{label}\n" for label in labels)
        (root / f"vocabulary/radgraph-xl__{kind}_labels.txt").write_text(text)
    model = {
        "embedder": {"token_embedders": {"bert": {"model_name": "someone/tiny-bert", "max_length": 24}}},
        "feature_size": 5,
        "max_span_width": 4,
        "feedforward_params": {"num_layers": 2, "hidden_dims": 12, "dropout": 0.4},
        "modules": {"relation": {"spans_per_word": 0.5}},
    }
    (root / "config.json").write_text(json.dumps({"model": model}))
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.5

    width = 2 * 64 + 5
    ner, pruner = (
        "_ner._ner_scorers.radgraph-xl__ner_labels",
        "_relation._mention_pruners.radgraph-xl__relation_labels",
    )
    pair, scorer = (
        f"_relation._relation_{part}.radgraph-xl__relation_labels" for part in ("feedforwards", "scorers")
    )
    tensors = {
        f"_embedder.token_embedder_bert._matched_embedder.transformer_model.{name}": value
        for name, value in AutoModel.from_pretrained(tiny_encoder).state_dict().items()
    }
    tensors["_endpoint_span_extractor._span_width_embedding.weight"] = drawn(4, 5)
    for start, first in (
        (f"{ner}.0._module", width),
        (f"{pruner}._scorer.0._module", width),
        (pair, 3 * width),
    ):
        for layer, size in enumerate((first, 12)):
            tensors[f"{start}._linear_layers.{layer}.weight"] = drawn(12, size)
            tensors[f"{start}._linear_layers.{layer}.bias"] = drawn(12)
    for start, labels in ((f"{ner}.1._module", 2), (f"{pruner}._scorer.1._module", 1), (scorer, 3)):
        tensors[f"{start}.weight"], tensors[f"{start}.bias"] = drawn(labels, 12), drawn(labels)
    tensors["_coref._antecedent_scorer._module.weight"] = drawn(1, 12)  # parts that RadGraph does not use
    torch.save(tensors, root / "weights.th")
    return folder


def test_radgraph_is_read_from_its_archive(archive: Path) -> None:
    found, skipped = optional_statistics(REFERENCES, DRAFTS, {"radgraph": archive})
    assert "radgraph" not in skipped, skipped
    for name in ("radgraph_simple", "radgraph_partial", "radgraph_complete"):
        values = found[name].sums[:, 0].tolist()
        assert values[1] == 1.0, "a report agrees with itself"
        assert values[2] == 0.0, "an empty draft has no entity"
        assert 0 <= values[0] < 1
    model = RadGraph(archive)
    entities = model.read(REFERENCES[0])
    assert any(one.relations for one in entities)
    assert all(len(one.words.split()) <= 4 for one in entities)
    long = "the heart is enlarged . " * 12  # longer than 24 pieces: read in parts
    assert model.words(report_words(long)).shape == (60, 64)


def test_an_archive_that_lacks_something_says_what_and_where_it_is_had_from(
    archive: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(archive, tmp_path / "copy")
    shutil.move(folder / "tiny-bert", tmp_path / "away")
    line = optional_statistics(REFERENCES, DRAFTS, {"radgraph": folder})[1]["radgraph"]
    assert "tiny-bert: there is no config.json" in line
    assert "huggingface.co/StanfordAIMI/RRG_scorers" in line
    shutil.move(tmp_path / "away", folder / "tiny-bert")
    tensors = torch.load(folder / "radgraph-xl/weights.th", weights_only=True)
    del tensors["_endpoint_span_extractor._span_width_embedding.weight"]
    torch.save(tensors, folder / "radgraph-xl/weights.th")
    line = optional_statistics(REFERENCES, DRAFTS, {"radgraph": folder})[1]["radgraph"]
    assert "'_endpoint_span_extractor._span_width_embedding.weight' has shape None, expected (4, 5)" in line
    assert "\n" not in line


def test_ratescore_weighs_types_and_lowers_opposed_findings() -> None:
    """Effusion found against effusion denied, and heart with heart, by hand."""
    vectors = normalize(torch.tensor([[1.0, 0, 0], [0, 1.0, 0.5]]), dim=1)
    own, other = ["DISEASE", "ANATOMY"], ["NON-DISEASE", "ANATOMY"]
    there, back = LONG_REPORTS[2][4], LONG_REPORTS[4][2]  # disease - non-disease, both ways
    heart = LONG_REPORTS[1][1]
    one = (there * OPPOSED + heart) / (there + heart)
    two = (back * OPPOSED + heart) / (back + heart)
    assert pair_score(vectors, vectors, own, other) == pytest.approx(2 * one * two / (one + two))
    assert pair_score(vectors, vectors, own, own) == pytest.approx(1.0)
    assert pair_score(vectors, vectors[:0], own, []) == 0.5


def test_entities_begin_at_b_and_end_before_anything_else_than_i() -> None:
    tags = [
        (0, 4, "I-Disease"),
        (5, 10, "B-Anatomy"),
        (11, 17, "I-Disease"),
        (18, 20, "O"),
        (21, 29, "B-disease"),
    ]
    assert entities_of("mild right pleura no effusion", tags) == [
        ("right pleura", "ANATOMY"),
        ("effusion", "DISEASE"),
    ]


def test_ratescore_is_measured_with_the_two_networks_of_a_folder(tiny_encoder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertForTokenClassification

    labels = ["O", *(f"{mark}-{kind}" for kind in ("ABNORMALITY", "ANATOMY", "NON-DISEASE") for mark in "BI")]
    torch.manual_seed(3)
    tagger = BertForTokenClassification.from_pretrained(
        tiny_encoder, num_labels=len(labels), id2label=dict(enumerate(labels))
    )
    tagger.save_pretrained(tmp_path / "RaTE-NER-Deberta")
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path / "RaTE-NER-Deberta")
    assert (
        "lacks BioLORD-2023-C/config.json"
        in optional_statistics(REFERENCES, DRAFTS, {"ratescore": tmp_path})[1]["ratescore"]
    )
    shutil.copytree(tiny_encoder, tmp_path / "BioLORD-2023-C")
    found, skipped = optional_statistics(REFERENCES, DRAFTS, {"ratescore": tmp_path})
    assert "ratescore" not in skipped, skipped
    values = found["ratescore"].sums[:, 0].tolist()
    assert values[1] == pytest.approx(1.0) or values[1] == 0.5
    assert values[2] == 0.0
    assert 0 < values[0] < 1
