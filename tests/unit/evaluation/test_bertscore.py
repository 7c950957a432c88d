# SPDX-License-Identifier: Apache-2.0
"""BERTScore: greedy matching by hand, whatever the order, the batches and the repeats of the texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from medflare.evaluation.bertscore import TokenEncoder, Tokens, bertscores, matched

TEXTS = (
    "the heart is big",
    "no effusion",
    "clear lungs",
    "the lungs is clear the heart is big no effusion",
    "effusion",
    "no big effusion the heart is clear",
    "the heart",
)
PAIRS = [(one, other) for one in TEXTS for other in reversed(TEXTS)]


@pytest.fixture(scope="module")
def bert(small_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that knows the words of TEXTS."""
    words = sorted({word for text in TEXTS for word in text.split()})
    return small_bert(tmp_path_factory.mktemp("bert"), words, 32)


@pytest.fixture
def encoder(bert: Path) -> TokenEncoder:
    return TokenEncoder(bert)


def by_hand(reference: str, hypothesis: str, folder: Path) -> tuple[float, float, float]:
    """One pair, one text at a time, token by token, marks matched and not counted."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.eval()

    def vectors(text: str) -> list[np.ndarray]:
        with torch.no_grad():
            rows = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().numpy()
        return [row / np.sqrt((row**2).sum()) for row in rows]

    predicted, gold = vectors(hypothesis), vectors(reference)
    precision = np.mean([max(float(row @ other) for other in gold) for row in predicted[1:-1]])
    recall = np.mean([max(float(row @ other) for other in predicted) for row in gold[1:-1]])
    return precision, recall, 2 * precision * recall / (precision + recall)


def test_scores_are_those_of_greedy_matching_by_hand(encoder: TokenEncoder, bert: Path) -> None:
    chosen = PAIRS[::5]
    scores = bertscores(*zip(*chosen, strict=True), encoder)
    expected = [by_hand(reference, hypothesis, bert) for reference, hypothesis in chosen]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_pair_has_the_same_score_alone_and_among_others_of_any_length(encoder: TokenEncoder) -> None:
    together = bertscores(*zip(*PAIRS, strict=True), encoder)
    alone = [bertscores([reference], [hypothesis], encoder)[0] for reference, hypothesis in PAIRS]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_precision_and_recall_change_places_with_the_texts(encoder: TokenEncoder) -> None:
    forth, back = (
        bertscores(*texts, encoder) for texts in ((TEXTS[:3], TEXTS[3:6]), (TEXTS[3:6], TEXTS[:3]))
    )
    np.testing.assert_allclose(forth[:, [1, 0, 2]], back, atol=1e-6)
    assert (forth < 0.999).all()


def tokens(rows: Sequence[Sequence[float]], counted: Sequence[bool]) -> Tokens:
    return Tokens(torch.tensor(rows), torch.tensor(counted))


def test_marks_weigh_nothing_and_may_be_matched() -> None:
    hypothesis = tokens([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]], [False, True, True])
    reference = tokens([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0]], [False, True, False])
    precision, recall = (1.0 + 0.96) / 2, 0.96
    f1 = 2 * precision * recall / (precision + recall)
    assert matched(hypothesis, reference) == pytest.approx((precision, recall, f1))


def test_f1_stays_a_score_where_texts_have_nothing_in_common() -> None:
    """Precision 0.02 and recall −0.015 would have a harmonic mean of −0.12."""
    one = Tokens(torch.tensor([[1.0, 0.0], [0.02, 1.0]]), torch.tensor([False, True]))
    other = Tokens(torch.tensor([[0.0, 1.0], [-0.9, -0.02]]), torch.tensor([False, True]))
    precision, recall, f1 = matched(one, other)
    assert precision > 0 > recall
    assert f1 == 0.0


@pytest.mark.parametrize("empty", ["", " \n", "\x00"])
def test_a_text_without_tokens_scores_zero_and_spoils_no_other(encoder: TokenEncoder, empty: str) -> None:
    scores = bertscores(["no effusion", empty, "clear"], [empty, "no effusion", "clear"], encoder)
    np.testing.assert_allclose(scores, [[0, 0, 0], [0, 0, 0], [1, 1, 1]], atol=1e-6)
    assert bertscores([], [], encoder).shape == (0, 3)


def test_each_different_text_is_encoded_once(encoder: TokenEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    encoded = encoder.encoded
    monkeypatch.setattr(encoder, "encoded", lambda texts: seen.extend(texts) or encoded(texts))
    bertscores(["clear lungs"] * 40 + ["no effusion"], ["clear lungs"] * 39 + ["big heart", "big"], encoder)
    assert sorted(seen) == ["big", "big heart", "clear lungs", "no effusion"]


def test_pieces_change_no_score(encoder: TokenEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bertscores(*zip(*PAIRS, strict=True), encoder)
    monkeypatch.setattr("medflare.evaluation.bertscore.PIECE", 5)
    np.testing.assert_allclose(bertscores(*zip(*PAIRS, strict=True), encoder), expected, atol=1e-5)


def test_a_text_longer_than_the_encoder_loses_its_end(encoder: TokenEncoder) -> None:
    long = "the heart is big " * 40
    assert len(encoder.ids([long])[0]) == encoder.frozen.longest == 32
    scores = bertscores([long], [long + "no effusion"], encoder)
    np.testing.assert_allclose(scores, 1.0, atol=1e-5)


def test_a_tokenizers_own_limit_counts_where_it_is_the_smaller_one(
    small_bert: Callable[..., Path], tmp_path: Path
) -> None:
    folder = small_bert(tmp_path / "bert", ["heart"], 32)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 8}))
    assert len(TokenEncoder(folder).ids(["heart " * 20])[0]) == 8


def test_the_first_word_of_a_byte_level_tokenizer_is_a_word_like_any_other(tmp_path: Path) -> None:
    """As bert-score does with RoBERTa (add_prefix_space)."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    words = ByteLevelBPETokenizer()
    words.train_from_iterator(TEXTS, vocab_size=300, show_progress=False)
    words.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    words.save_model(str(tmp_path))
    RobertaTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).save_pretrained(tmp_path)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    RobertaModel(RobertaConfig(vocab_size=320, max_position_embeddings=20, **shape)).save_pretrained(tmp_path)
    encoder = TokenEncoder(tmp_path)
    first, second = encoder.ids(["heart", "the heart"])
    assert first[1:-1] == second[-1 - len(first[1:-1]) : -1]
    assert encoder.frozen.longest == 18
