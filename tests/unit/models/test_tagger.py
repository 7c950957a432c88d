# SPDX-License-Identifier: Apache-2.0
"""The tagger: its size, its loss by hand, what may be predicted, and which folders can be its encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES, MODIFIERS
from medflare.learners.token_classification.learner import PAPER
from medflare.models.encoder_folder import TextEncoderSettings, load_encoder
from medflare.models.tagger import Tagged, Tagger

WORDS = ["severe", "chest", "pain", "today"]


def tagger_of(folder: Path, **changes: Any) -> Tagger:
    given: dict[str, Any] = {"freeze_words": False, "seed": 0} | changes
    return Tagger(load_encoder(folder, "fp32", "cpu", TextEncoderSettings(), 0), **given)


@pytest.fixture(scope="module")
def tagger(tiny_encoder: Path) -> Tagger:
    return tagger_of(tiny_encoder)


def questions(tagger: Tagger) -> list[Tagged]:
    short, long = tagger.pieces([WORDS, WORDS * 5])
    head = ("problem", (1, 3))
    return [
        tagger.tagged("ner", ENTITY_TYPES, short, tags=[0, 1, 2, 0]),
        tagger.tagged("re", MODIFIERS["problem"], short, head, [1, 0, 0, 13]),
        tagger.tagged("ner", ENTITY_TYPES, long, tags=[0, 1, 2, 0] * 5),
    ]


def test_the_paper_s_encoder_has_as_many_weights_as_we_say() -> None:
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        model = BertModel(BertConfig(vocab_size=28996), add_pooling_layer=False)
    assert sum(p.numel() for p in model.parameters()) == PAPER["encoder"]


def test_shared_names_are_encoder_heads_and_marks(tagger: Tagger) -> None:
    names = {name.split(".")[0] for name, _ in tagger.named_parameters()}
    assert names == {"encoder", "heads", "marks"}
    assert not any("pooler" in name for name, _ in tagger.named_parameters())
    shapes = {n: tuple(p.shape) for n, p in tagger.named_parameters() if n.startswith(("heads", "marks"))}
    assert shapes["heads.ner.weight"] == (9, 64)
    assert shapes["heads.re.weight"] == (33, 64)
    assert shapes["marks.weight"] == (5, 64)


def test_every_weight_learns(tagger: Tagger) -> None:
    tagger.zero_grad()
    loss, count = tagger.loss(questions(tagger))
    loss.backward()
    assert count == 28
    without = {n for n, p in tagger.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert without == set()


def test_frozen_words_do_not_learn(tiny_encoder: Path) -> None:
    frozen = {
        n for n, p in tagger_of(tiny_encoder, freeze_words=True).named_parameters() if not p.requires_grad
    }
    assert frozen == {"encoder.embeddings.word_embeddings.weight"}


def test_the_loss_is_the_words_mean_whatever_shares_their_batch(tagger: Tagger) -> None:
    batch = questions(tagger)
    one_by_one = [tagger.mean_loss([item], 1) for item in batch]
    weighted = (4 * one_by_one[0] + 4 * one_by_one[1] + 20 * one_by_one[2]) / 28
    assert tagger.mean_loss(batch, 3) == pytest.approx(weighted, abs=1e-5)


def test_the_loss_counts_only_tags_that_are_allowed(tagger: Tagger) -> None:
    """A treatment may have 2 of the 16 modifiers: 5 of 33 tags. With heads at zero all of them are equal."""
    pieces = tagger.pieces([WORDS])[0]
    with torch.no_grad():
        weights = {n: p.clone() for n, p in tagger.heads.named_parameters()}
        for parameter in tagger.heads.parameters():
            parameter.zero_()
    batch = tagger.tagged("re", MODIFIERS["treatment"], pieces, ("treatment", (0, 1)), [0] * 4)
    assert tagger.mean_loss([batch], 1) == pytest.approx(torch.tensor(5.0).log().item(), abs=1e-6)
    with torch.no_grad():
        for name, parameter in tagger.heads.named_parameters():
            parameter.copy_(weights[name])


def test_answers_do_not_depend_on_the_batch(tagger: Tagger) -> None:
    batch = questions(tagger)
    assert tagger.tags(batch, 3) == [tagger.tags([item], 1)[0] for item in batch]


def test_a_head_s_type_changes_what_is_seen(tagger: Tagger) -> None:
    pieces = tagger.pieces([WORDS])[0]
    types = MODIFIERS["treatment"]
    losses = {
        tagger.mean_loss([tagger.tagged("re", types, pieces, (name, place), [0] * 4)], 1)
        for name in ENTITY_TYPES
        for place in ((0, 1), (1, 3))
    }
    assert len(losses) == 8


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra", "deberta-v2"])
def test_encoders_without_segment_ids_or_with_places_of_their_own_do_too(
    kind: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if kind == "distilbert":
        small = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, **small
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    result = tagger_of(tmp_path)
    assert result.text.longest == (64 if kind == "roberta" else 66)
    batch = questions(result)
    loss, _ = result.loss(batch)
    loss.backward()
    assert torch.isfinite(loss)
    longest = result.tagged("ner", ENTITY_TYPES, [[5]] * (result.text.longest - 2), tags=[0] * 62)
    assert len(result.tags([longest], 1)[0]) == result.text.longest - 2


def test_what_is_no_encoder_is_refused(tiny_backbone: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds a llama.*BERT, RoBERTa"):
        tagger_of(tiny_backbone)
    with pytest.raises(ConfigError, match="there is no folder"):
        tagger_of(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"precision is 'nf4'.*trains all weights"):
        load_encoder(tiny_encoder, "nf4", "cpu", TextEncoderSettings(), 0)


def test_a_published_encoder_s_weights_are_taken_over(tiny_encoder: Path, tagger: Tagger) -> None:
    from safetensors.torch import load_file

    kept = load_file(tiny_encoder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    assert torch.equal(
        dict(tagger_of(tiny_encoder).named_parameters())["encoder." + name], kept["bert." + name]
    )
