# SPDX-License-Identifier: Apache-2.0
"""`nearest_by: encoder`: names as vectors of a local encoder, what is refused, what a sketch depends on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.core.variables import with_absolute_paths
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import BackboneConfig, load_site_file
from medflare.knowledge.cohort_texts import KnowledgeText
from medflare.knowledge.name_encoder import NameEncoder, check_encoder
from medflare.knowledge.nearest_concept import NearestConcept
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.triples import Triple
from medflare.knowledge.vocabulary import Concept, Vocabulary
from medflare.recipes.simulate import prepare_workspace
from medflare.worker.sketch import knowledge_files, sketch_digest

NAMES = ["fever", "shortness of breath", "no cough", "breath", "high fever of unknown cause", "fever"]


@pytest.fixture(scope="module")
def made(small_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that knows the words of NAMES, with marks [CLS] and [SEP], pooled as no file says."""
    words = sorted({word for name in NAMES for word in name.split()})
    return small_bert(tmp_path_factory.mktemp("names") / "bert", [*words, "##s"], 16)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "bert")


def pooled_as(folder: Path, content: object) -> Path:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_one_name_at_a_time(folder: Path, pooling: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = []
    for name in NAMES:
        with torch.no_grad():
            states = model(**tokenizer(name, return_tensors="pt")).last_hidden_state[0]
        expected.append(states[0] if pooling == "cls" else states.mean(0))
    embeddings = NameEncoder(folder, pooling).embed(NAMES, batch=4)
    np.testing.assert_allclose(embeddings, torch.stack(expected).numpy(), atol=1e-5)
    assert np.abs(embeddings[0] - embeddings[3]).max() > 0.01


def test_no_name_an_empty_one_and_one_longer_than_the_encoder_are_vectors_too(folder: Path) -> None:
    encoder = NameEncoder(folder, "mean")
    assert encoder.embed([]).shape == (0, 16)
    embeddings = encoder.embed(["", "fever " * 40, "fever " * 50])
    assert np.isfinite(embeddings).all()
    np.testing.assert_allclose(embeddings[1], embeddings[2], atol=1e-6)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_the_folder_says_how_tokens_are_pooled(folder: Path, message: object, expected: str) -> None:
    assert check_encoder(pooled_as(folder, message)) == expected
    assert NameEncoder(folder).pooling == expected
    assert check_encoder(folder, "mean") == "mean"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, r"has no 1_Pooling/config\.json.*Set knowledge\.pooling to cls \(SapBERT\) or mean"),
        ({"pooling_mode_max_tokens": True}, "asks for max_tokens; expected mean or cls alone"),
        ({"pooling_mode": ["mean", "cls"]}, "asks for mean and cls; expected"),
        ({}, "asks for no pooling"),
        ([], "expected a dict"),
    ],
)
def test_a_pooling_that_is_not_known_is_never_guessed(folder: Path, said: object, message: str) -> None:
    if said is not None:
        pooled_as(folder, said)
    with pytest.raises(ConfigError, match=message):
        NameEncoder(folder)
    if said != []:
        assert check_encoder(folder, "cls") == "cls"


def test_a_layer_that_would_not_be_applied_is_refused(folder: Path) -> None:
    kinds = ["models.Transformer", "models.Pooling", "models.Dense"]
    (folder / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.{k}"} for k in kinds]))
    with pytest.raises(ConfigError, match=r"modules\.json names Dense; only Transformer, Pooling, Normalize"):
        NameEncoder(folder, "mean")


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("*", "there is no folder"),
        ("*.safetensors", r"has no \*\.safetensors file. Pickled"),
        ("config.json", r"config\.json cannot be read \(FileNotFoundError\)"),
        ("[tv]*", "has no tokenizer; expected one of tokenizer.json"),
    ],
)
def test_what_a_folder_lacks_is_named(folder: Path, gone: str, message: str) -> None:
    for file in folder.glob(gone):
        file.unlink()
    if gone == "*":
        folder.rmdir()
    with pytest.raises(ConfigError, match=message):
        NameEncoder(folder, "mean")


def test_a_decoder_is_no_encoder(tiny_backbone: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds a llama, which is no encoder.* nearest_by: backbone"):
        NameEncoder(tiny_backbone, "mean")


# ---- in the settings of a site -----------------------------------------------------------------------------


def settings(base: Path, **changes: object) -> KnowledgeConfig:
    terms = (f"[Term]\nid: S:{i}\nname: {name}\n" for i, name in enumerate(("fever", "breath", "cough")))
    (base / "terms.obo").write_text("\n".join(terms))
    (base / "key").write_text("ab" * 32)
    (base / "more.tsv").write_text("fever\tcauses\tcough\n")
    given = {
        "vocabulary": "terms.obo",
        "key": "key",
        "extractor": "none",
        "triples": "more.tsv",
        "nearest": 0.01,
        "nearest_by": "encoder",
        "encoder": "bert",
        "pooling": "cls",
    }
    chosen = {key: value for key, value in {**given, **changes}.items() if value is not None}
    return with_absolute_paths(parse(KnowledgeConfig, chosen, "site.yaml"), base)


def test_an_encoder_says_what_is_near(folder: Path) -> None:
    config, unknown = settings(folder.parent), "high fever of unknown cause"
    rows = NameEncoder(folder, "cls").embed(["fever", "breath", "cough", unknown]).astype(float)
    cosines = rows[:3] @ rows[3] / np.linalg.norm(rows[:3], axis=1) / np.linalg.norm(rows[3])
    best = int(cosines.argmax())
    other = (best + 1) % 3
    (folder.parent / "more.tsv").write_text(f"{['fever', 'breath', 'cough'][other]}\tcauses\t{unknown}\n")
    assert site_graph(config, []) == {
        Triple(f"s:{other}", "causes", f"s:{best}"): pytest.approx(cosines[best], abs=1e-5)
    }


def test_the_vocabulary_is_embedded_for_the_first_unknown_name_and_once() -> None:
    asked: list[int] = []

    def embed(texts: Sequence[str]) -> np.ndarray:
        asked.append(len(texts))
        return np.ones((len(texts), 2))

    names = {"S:1": ("fever", "high fever"), "S:2": ("cough",)}
    concepts = [Concept(concept_id=key, names=own) for key, own in names.items()]
    near = NearestConcept(Vocabulary(concepts), embed)
    assert near.lookup("Fever") == ("S:1", 1.0)
    assert asked == []
    near.resolve(["breath", "no cough"])
    near.lookup("child")
    assert sorted(asked) == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": None, "pooling": None}, "nearest_by: encoder needs `encoder`"),
        ({"nearest": None}, "nearest_by: encoder needs `nearest`"),
        ({"nearest_by": "characters"}, "encoder is for nearest_by: encoder; here nearest_by is characters"),
        ({"nearest_by": "backbone", "encoder": None}, "pooling is for nearest_by: encoder"),
        ({"pooling": "max"}, "pooling"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **changes)


def test_a_sketch_depends_on_every_file_of_the_encoder_that_is_read(folder: Path) -> None:
    config = settings(pooled_as(folder, {"pooling_mode": "cls"}).parent)

    def digest() -> str:
        return sketch_digest(config, [KnowledgeText("a text")], BackboneConfig())

    digests = {digest()}
    (folder / "README.md").write_text("changes nothing")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"another form")
    assert digest() in digests
    weights = folder / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    digests.add(digest())
    for name in ("vocab.txt", "config.json", "1_Pooling/config.json"):
        (folder / name).write_text((folder / name).read_text() + " ")
        digests.add(digest())
    assert len(digests) == 5
    assert folder not in knowledge_files(config)
    shutil.rmtree(folder)
    assert folder in knowledge_files(config)


def test_a_sketch_depends_on_the_weights_of_the_model_that_makes_the_graph(tmp_path: Path) -> None:
    config, model = settings(tmp_path), tmp_path / "model"
    model.mkdir()
    backbone = BackboneConfig(folder=model)
    seen: dict[str, set[str]] = {"model": set(), "rules": set()}
    for weights in (b"first", b"second"):
        (model / "model.safetensors").write_bytes(weights)
        for extractor, digests in seen.items():
            made_by = config.model_copy(update={"extractor": extractor})
            digests.add(sketch_digest(made_by, [KnowledgeText("a text")], backbone))
    assert {extractor: len(digests) for extractor, digests in seen.items()} == {"model": 2, "rules": 1}


SITES = """
sites:
  a:
    cohort: {format: manifest, root: data}
    knowledge:
      {vocabulary: t.obo, key: k, extractor: none, triples: g.tsv,
       nearest: 0.9, nearest_by: encoder, encoder: e/bert}
"""


def test_the_folder_counts_from_site_yaml_also_where_the_simulator_copied_it(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITES, encoding="utf-8")
    prepare_workspace(tmp_path / "work", tmp_path / "site.yaml")
    for file in (tmp_path / "site.yaml", tmp_path / "work" / "local" / "site.yaml"):
        knowledge = load_site_file(file)["a"].knowledge
        assert knowledge is not None
        assert knowledge.encoder == tmp_path / "e" / "bert"
