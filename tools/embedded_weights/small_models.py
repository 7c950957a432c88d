# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and decoder of the embedded language models, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def train_byte_level(texts: Sequence[str], vocabulary: int, special: Sequence[str]) -> Any:
    """Return a byte-level BPE tokenizer with a leading-space convention.

    Args:
        vocabulary: number of tokens, among them `special`.
        special: tokens with the first numbers: <pad>, <s>, </s> and <unk> before all others.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def for_transformers(tokenizer: Any, special: Sequence[str], positions: int) -> Any:
    """Return the tokenizer as transformers has it; `positions`: tokens that the decoder can read."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=list(special[4:]),
        model_max_length=positions,
    )


def new_decoder(vocabulary: int, positions: int) -> Any:
    """Return a Llama of 4 layers; its feed-forward width is a multiple of 64, which 4-bit kernels need."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=-(-vocabulary // 64) * 64,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=3,
            num_key_value_heads=3,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )
