# SPDX-License-Identifier: Apache-2.0
"""Triples from texts by a language model: how an answer is read, and a model that was taught to give one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.core.variables import with_absolute_paths
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import BackboneConfig
from medflare.knowledge.cohort_texts import KnowledgeText
from medflare.knowledge.model_extraction import CUT, ModelExtractor, prompt
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.triple_parsing import (
    ABSENT,
    KNOWN,
    MALFORMED,
    RELATION,
    SELF,
    known_relation,
    read_answer,
)
from medflare.knowledge.triples import Triple
from medflare.models.backbone import load_backbone
from medflare.models.plain_text import PlainText

CHUNK = "Influenza causes high fevers. Aspirin relieves pain; the patient denies cough."


def read(answer: str) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    faults: Counter[str] = Counter()
    return [tuple(triple) for triple, _, _ in read_answer(answer, CHUNK, faults)], dict(faults)


# ---- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "triple"),
    [
        ("Influenza | causes | high fever", ("influenza", "causes", "high fever")),
        ("- influenza | Causes | Fever.", ("influenza", "causes", "fever")),
        ("2) (aspirin | treats | pain)", ("aspirin", "treats", "pain")),
        ("| pain | is relieved by | aspirin |", ("aspirin", "treats", "pain")),
        ("fever | is due to | influenza", ("influenza", "causes", "fever")),
        ("influenza | has_symptom | fever", ("influenza", "has symptom", "fever")),
        ("influenza | has symptoms | fever", ("influenza", "has symptom", "fever")),
        ("patient | is without | cough", ("patient", "is without", "cough")),
    ],
)
def test_a_line_is_read_in_many_spellings(line: str, triple: tuple[str, ...]) -> None:
    assert read(line) == ([triple], {})


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("influenza causes fever", MALFORMED),
        ("influenza | causes", MALFORMED),
        ("influenza | causes | fever | always", MALFORMED),
        ("influenza |  | fever", MALFORMED),
        ("influenza | resembles | fever", RELATION),
        ("influenza | causes | death", ABSENT),
        ("malaria | causes | fever", ABSENT),
        ("influ | causes | fever", ABSENT),
        ("cough | causes | Cough", SELF),
    ],
)
def test_a_line_that_cannot_be_believed_is_left_out_and_counted(line: str, fault: str) -> None:
    assert read(f"{line}\naspirin | treats | pain") == ([("aspirin", "treats", "pain")], {fault: 1})


def test_a_text_that_speaks_of_no_patient_says_nothing_of_one() -> None:
    """DD-13: a question of a textbook has no patient, whatever a model makes of it."""
    answer, faults = "patient | has | fever\ninfluenza | causes | fever", Counter[str]()
    triples = read_answer(answer, "Influenza causes fever.", faults, of_patient=False)
    assert [tuple(triple) for triple, _, _ in triples] == [("influenza", "causes", "fever")]
    assert faults == {ABSENT: 1}


@pytest.mark.parametrize("answer", ["", "none", "None.", "\n \n"])
def test_no_answer_is_no_fault(answer: str) -> None:
    assert read(answer) == ([], {})


def test_words_of_a_relation_lead_to_ours_or_to_none() -> None:
    assert known_relation("leads to") == ("causes", False)
    assert known_relation("caused by") == ("causes", True)
    assert known_relation("asociated with") == ("associated with", False)
    assert known_relation("likes") is None
    assert all(known_relation(name) == (name, False) for name in KNOWN)


# ---- a model -----------------------------------------------------------------------------------------------

FACTS = {
    "Influenza causes fever and cough.": [
        Triple("influenza", "causes", "fever"),
        Triple("influenza", "causes", "cough"),
    ],
    "The rash was treated with cortisone.": [Triple("cortisone", "treats", "rash")],
    "She came with her mother.": [],
}


def as_lines(triples: Sequence[Triple]) -> str:
    """The answer that says these triples."""
    return "\n".join(" | ".join(triple) for triple in triples) or "none"


@pytest.fixture(scope="module")
def taught() -> PlainText:
    """The embedded decoder after it has learnt three questions by heart."""
    backbone = load_backbone(None, "fp32", embedded="notes_decoder")
    model, net = PlainText(backbone), backbone.model
    torch.manual_seed(0)
    net.requires_grad_(True)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3)
    rows = [(model.ids(prompt(text)), model.ids(as_lines(facts))) for text, facts in FACTS.items()]
    for _ in range(30):
        optimiser.zero_grad()
        for asked, said in rows:
            said = (
                [*said[1:], model.end] if said[0] == backbone.tokenizer.bos_token_id else [*said, model.end]
            )
            hidden = net.get_decoder()(torch.tensor([[*asked, *said]])).last_hidden_state
            logits = net.get_output_embeddings()(hidden[0, len(asked) - 1 : -1])
            (F.cross_entropy(logits, torch.tensor(said)) / len(rows)).backward()
        optimiser.step()
    net.requires_grad_(False)
    net.eval()
    return model


def test_a_taught_model_finds_the_triples_it_was_taught(taught: PlainText) -> None:
    extractor = ModelExtractor(taught, most=64)
    triples = extractor.triples(["\n\n".join(FACTS)])
    assert [triple for triple, _ in triples] == [triple for facts in FACTS.values() for triple in facts]
    assert all(0.5 < confidence <= 1 for _, confidence in triples)
    assert extractor.counts == {"chunks": 3, "triples": 3}


def test_a_site_tells_its_model_which_texts_speak_of_patients(
    taught: PlainText, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = dict[str, bool]()

    def triples(self: ModelExtractor, texts: list[str], *, of_patients: bool) -> list[tuple[Triple, float]]:
        asked.update(dict.fromkeys(texts, of_patients))
        return []

    monkeypatch.setattr(ModelExtractor, "triples", triples)
    monkeypatch.setattr("medflare.knowledge.site_graph._model", lambda *_: taught)
    (tmp_path / "terms.tsv").write_text("id\tlabel\nC:flu\tinfluenza\n")
    given = {"vocabulary": "terms.tsv", "key": "sketch.key", "extractor": "model"}
    config = with_absolute_paths(parse(KnowledgeConfig, given, "site.yaml"), tmp_path)
    texts = [KnowledgeText("She has influenza."), KnowledgeText("What is influenza?", of_patient=False)]
    site_graph(config, texts, BackboneConfig(folder=tmp_path))
    assert asked == {"She has influenza.": True, "What is influenza?": False}


def test_an_answer_that_is_cut_short_loses_its_last_line(taught: PlainText) -> None:
    chunk = next(iter(FACTS))
    lines = as_lines(FACTS[chunk])
    extractor = ModelExtractor(taught, most=len(taught.ids(lines)) - 2)
    triples = extractor.triples([chunk])
    assert [triple for triple, _ in triples] == FACTS[chunk][:1]
    assert extractor.counts[CUT] == 1


def test_confidence_is_the_geometric_mean_of_a_lines_tokens(taught: PlainText) -> None:
    (spoken,) = taught.write([prompt(next(iter(FACTS)))], 64)
    assert spoken.ended
    assert len(spoken.probabilities) == len(spoken.ids)
    perplexity = torch.tensor(spoken.probabilities).log().mean().exp().item()
    assert taught.confidence(spoken, 0, len(spoken.text)) == pytest.approx(perplexity, rel=1e-5)
    first = spoken.text.index("\n")
    parts = taught.confidence(spoken, 0, first), taught.confidence(spoken, first, len(spoken.text))
    assert min(parts) <= perplexity <= max(parts)


def test_an_answer_does_not_depend_on_what_is_asked_beside_it(taught: PlainText) -> None:
    prompts = [prompt(text) for text in FACTS]
    together = [spoken.text for spoken in taught.write(prompts, 48, batch=3)]
    assert together == [taught.write([one], 48)[0].text for one in prompts]


def test_a_chunk_that_is_too_long_is_asked_about_in_pieces(taught: PlainText) -> None:
    sentence = "The rash was treated with cortisone. "
    extractor = ModelExtractor(taught, most=taught.context - len(taught.ids(prompt(""))) - 60)
    pieces = list(extractor._fitting(sentence * 12 + "x" * 600))
    assert len(pieces) == 3
    assert all(len(taught.ids(piece)) <= 60 for piece in pieces)
    assert "".join(pieces).count("cortisone") == 12


def test_a_context_without_room_for_a_text_is_refused(taught: PlainText) -> None:
    with pytest.raises(ConfigError, match="32 are the least"):
        ModelExtractor(taught, most=taught.context - 40)


def test_a_site_reads_its_texts_with_the_model_in_its_own_folder(taught: PlainText, tmp_path: Path) -> None:
    taught.backbone.model.save_pretrained(tmp_path / "model")
    taught.backbone.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "terms.tsv").write_text("id\tlabel\nC:flu\tinfluenza\nC:rash\trash\n")
    given = {"vocabulary": "terms.tsv", "key": "sketch.key", "extractor": "model", "answer_tokens": 64}
    config = with_absolute_paths(parse(KnowledgeConfig, given, "site.yaml"), tmp_path)
    backbone = BackboneConfig(folder=tmp_path / "model", precision="fp32")
    assert set(site_graph(config, [KnowledgeText(text) for text in FACTS], backbone)) == {
        Triple("c:flu", "causes", "fever"),
        Triple("c:flu", "causes", "cough"),
        Triple("cortisone", "treats", "c:rash"),
    }
    with pytest.raises(ConfigError, match="embedded one, which cannot read triples"):
        site_graph(config, [KnowledgeText(text) for text in FACTS])


def test_the_embedded_decoder_as_it_comes_finds_nothing() -> None:
    """Why `extractor: rules` is the default."""
    model = PlainText(load_backbone(None, "fp32", embedded="notes_decoder"))
    extractor = ModelExtractor(model, most=48)
    assert extractor.triples(list(FACTS)) == []


def test_texts_as_vectors_do_not_depend_on_their_neighbours(taught: PlainText) -> None:
    texts = ["fever", "acute inflammation of the heart", "cough"]
    together = taught.embed(texts)
    assert together.shape == (3, taught.backbone.hidden)
    for text, row in zip(texts, together, strict=True):
        assert taught.embed([text])[0] == pytest.approx(row, abs=1e-4)
