# SPDX-License-Identifier: Apache-2.0
"""A word-level tokenizer of a benchmark's training reports, as R2Gen makes it of pooled data (BL-4)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FEWEST = 10
"""Times that a word occurs in the training reports, at least: R2Gen's threshold for MIMIC-CXR."""


def write_word_list(reports: Iterable[str], folder: Path, fewest: int = FEWEST) -> int:
    """Write a tokenizer of all words that occur `fewest` times, and return how many tokens it has.

    For whoever holds a benchmark's data in one place. Where every site holds its own, this list would tell of
    its patients: give all sites a tokenizer of public text instead.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.WordPiece(prefix="", cleanup=True)
    trainer = trainers.WordLevelTrainer(
        min_frequency=fewest, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], show_progress=False
    )
    words.train_from_iterator(reports, trainer)
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **marks).save_pretrained(folder)
    return int(words.get_vocab_size())
