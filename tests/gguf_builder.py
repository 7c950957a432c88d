# SPDX-License-Identifier: Apache-2.0
"""A small chat model as llama.cpp stores one: a GGUF file with a byte-level vocabulary and a chat template.

It learns one sentence by heart, so that the order of its words means something to it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from medflare.models.text_check import SAMPLE

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADS, WIDTH = 2, 64


def vocabulary() -> list[str]:
    """The marks, one token for each byte, and one of two bytes: transformers expects a merge."""
    return [*MARKS, *sorted(ByteLevel.alphabet()), "~~"]


@cache
def network(*, trained: bool) -> LlamaForCausalLM:
    """A two-layer Llama; trained, it knows the sample text of the check by heart."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    if trained:
        numbers = {token: i for i, token in enumerate(vocabulary())}
        letters = "".join(piece for piece, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(SAMPLE))
        ids = torch.tensor([[1, *(numbers[letter] for letter in letters)]])
        optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(120):
            optimiser.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
    return model.eval()


def write_gguf(
    file: Path,
    *,
    trained: bool = True,
    architecture: str = "llama",
    chat: str | None = CHAT,
    end: int | None = 2,
) -> Path:
    """Write the model to a file in float32 and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("Tiny chat")
    writer.add_license("apache-2.0")
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(MARKS) + [1] * (len(vocabulary()) - len(MARKS)))
    writer.add_token_merges(["~ ~"])
    writer.add_bos_token_id(1)
    if end is not None:
        writer.add_eos_token_id(end)
    if chat is not None:
        writer.add_chat_template(chat)
    for name, weights in network(trained=trained).state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(_gguf_name(name), _gguf_order(name, weights).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(name: str) -> str:
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ):
        name = name.replace(ours, theirs)
    return name


def _gguf_order(name: str, weights: torch.Tensor) -> torch.Tensor:
    """llama.cpp turns neighbours within a head, transformers its halves: rows of q and k change places."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weights.contiguous()
    half = weights.shape[0] // HEADS // 2
    return weights.reshape(HEADS, 2, half, WIDTH).transpose(1, 2).reshape(weights.shape).contiguous()
