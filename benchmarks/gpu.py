# SPDX-License-Identifier: Apache-2.0
"""QLoRA at the papers' sizes on a GPU: `python benchmarks/gpu.py`. Memory, tokens a second, utilisation.

The weights are random: neither memory nor speed depends on them. Each shape is trained as Fed-MedLoRA's
preset `paper` trains it, with LoRA of rank 16 on all seven projections and gradient checkpointing, in NF4 and
in bf16. The paper reports 14.04 GB for Llama-3-8B with NF4 and 6.8 GB to use it. Without a GPU every shape is
skipped by its name; `--shape small --device cpu` runs the very code on a processor.

A small model has written-out steps of its own (`models/fused_decoder.py`); `--plain` takes those of
transformers and PEFT: `--shape SmolLM2-135M --precision bf16 --no-checkpointing --batch 8 --tokens 100`.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import ALL_PROJECTIONS, LoraSettings
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.text_model import Sequenced, TextModel

SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
    "Llama-2-7B": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    },
    "SmolLM2-135M": {
        "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "small": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40": 181e12, "A10": 125e12}
"""Floating-point operations a second in bf16, dense, as the makers state them."""
GB = 1e9


def write_random(shape: dict[str, Any], folder: Path, device: str) -> None:
    """Write a model of a shape with random weights and a tokenizer of few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    with torch.device(device):
        config = LlamaConfig(**shape, bos_token_id=1, eos_token_id=2, pad_token_id=0)
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", "word"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)


def measure(backbone: Backbone, given: argparse.Namespace) -> dict[str, Any]:
    """Return memory and speed of a training step and of writing, with a loaded backbone."""
    cuda, peak_before = given.device == "cuda", 0
    if cuda:
        torch.cuda.synchronize()
        peak_before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    lora = LoraSettings(rank=16, lora_alpha=64, targets=ALL_PROJECTIONS)
    model = TextModel(backbone, lora, (GENERIC,), 0)
    if given.plain:
        model.fused = None
    model.adapters.use((GENERIC,), train=(GENERIC,))
    if not given.no_checkpointing:
        model.checkpoint_gradients()
    net = model.backbone.model.train()
    vocabulary = int(net.config.vocab_size)
    optimiser = torch.optim.AdamW(model.adapters.parameters(GENERIC), 2e-4)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocabulary, (given.batch, given.tokens), generator=generator).tolist()
    rows = [Sequenced(tuple(row), given.tokens // 2) for row in ids]
    seconds = []
    for _ in range(given.steps + 1):  # the first one warms up
        started = time.perf_counter()
        total, count = model.loss(rows)
        optimiser.zero_grad()
        (total / count).backward()
        optimiser.step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    step = min(seconds[1:])
    found: dict[str, Any] = {
        "weights_gb": peak_before / GB,
        "training_gb": torch.cuda.max_memory_allocated() / GB if cuda else None,
        "tokens_per_second": given.batch * given.tokens / step,
    }
    layers, hidden = int(net.config.num_hidden_layers), int(net.config.hidden_size)
    linear = layers * block_weights(net.config)
    passes = 2 * (2 if given.no_checkpointing else 3)  # forward and the gradient of inputs; forward again
    operations = passes * (linear + layers * hidden * given.tokens) * given.batch * given.tokens
    name = torch.cuda.get_device_name() if cuda else ""
    peak = next((value for key, value in PEAKS.items() if key in name), None)
    found["utilisation"] = operations / step / peak if peak else None
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with model.evaluating(), torch.no_grad():
        started = time.perf_counter()
        written = model.generate_ids([row.ids[: given.tokens // 2] for row in rows], 32)
        found["written_per_second"] = sum(map(len, written)) / (time.perf_counter() - started)
    found["using_gb"] = torch.cuda.max_memory_allocated() / GB if cuda else None
    return found


def block_weights(config: Any) -> int:
    """Return the weights of one block's linear layers, which quantised tensors do not show."""
    keys = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    attention = 2 * config.hidden_size * (config.hidden_size + keys)
    return int(attention + 3 * config.hidden_size * config.intermediate_size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", default=["Llama-3-8B", "Llama-2-7B"], choices=list(SHAPES))
    parser.add_argument("--precision", nargs="+", default=["nf4", "bf16"], choices=["nf4", "bf16", "fp32"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--batch", type=int, default=4, help="the paper's")
    parser.add_argument("--tokens", type=int, default=800, help="of a question and its answer")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without the decoder's own steps")
    parser.add_argument("--out", type=Path, help="JSON of all numbers")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for shape in given.shape:
        if given.device == "cuda" and not torch.cuda.is_available():
            print(f"{shape}: skipped, torch sees no GPU here")
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_random(SHAPES[shape], Path(folder), given.device)
            for precision in given.precision:
                backbone = load_backbone(folder, precision, given.device)
                results[f"{shape}, {precision}"] = measure(backbone, given)
                del backbone
                gc.collect()  # adapters and their model refer to each other
                if given.device == "cuda":
                    torch.cuda.empty_cache()
    if results:
        device = torch.cuda.get_device_name() if given.device == "cuda" else "processor"
        print(f"{device}, batch {given.batch} of {given.tokens} tokens\n")
        memory, speed = ("weights_gb", "training_gb", "using_gb"), ("tokens_per_second", "written_per_second")
        columns = (*memory, *speed, "utilisation")
        print("| | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
        for name, row in results.items():
            shown = ("" if row[key] is None else f"{row[key]:.2f}" for key in columns)
            print(f"| {name} | " + " | ".join(shown) + " |")
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
