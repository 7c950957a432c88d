# SPDX-License-Identifier: Apache-2.0
"""A small ViT and a small GPT-2 as local folders, pretrained on synthetic hospitals that no study uses.

    python -m method_comparison.tasks.fedvit_backbone models/small-vit-gpt2

They stand in for ViT-B/16 and GPT-2, which cannot be shipped: the ViT learns to name the 14 conditions in
radiographs, the GPT-2 to continue reports; nothing in them has seen an image and a report together. The
layers are those of the small new model of jobs/fedvit_gpt2, the vocabulary is smaller.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.images import augment
from medflare.learners.optim import adamw, cosine, scale_rates
from medflare.models.vit_gpt2 import ViTGPT2Settings
from medflare.synthetic.hospitals import generate, generate_reports
from medflare.synthetic.profiles import pretraining_hospitals

SETTINGS = ViTGPT2Settings()
HOSPITALS, PATIENTS = 40, 75
WORDS = 1024
"""Of the vocabulary: a processor spends most of its time on the output layer, and reports need no more."""
RATE = 1e-3


def studies(image_size: int) -> tuple[Tensor, Tensor]:
    """Images (studies, 1, size, size) in [0, 1] and whether each of the 14 conditions is present."""
    images, targets = [], []
    for profile in pretraining_hospitals(HOSPITALS):
        for study in generate(profile, PATIENTS, size=128):
            whole = torch.from_numpy(np.asarray(study.image))[None, None]
            images.append(F.interpolate(whole, (image_size, image_size), mode="bilinear", antialias=True)[0])
            targets.append([float(code == Code.POSITIVE) for code in study.codes])
    return torch.stack(images), torch.tensor(targets)


def train(
    parameters: list[nn.Parameter], losses: Iterator[Tensor], steps: int, name: str, every: int = 200
) -> float:
    """AdamW with one cosine; the mean loss of the last `every` steps."""
    optimiser, recent = adamw([(parameters, RATE)], 0.05), list[float]()
    for step in range(steps):
        scale_rates(optimiser, cosine(step / steps, 0.05))
        optimiser.zero_grad(set_to_none=True)
        loss = next(losses)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        recent = [*recent[1 - every :], loss.item()]
        if (step + 1) % every == 0:
            print(f"{name}: step {step + 1} of {steps}, loss {np.mean(recent):.3f}", flush=True)
    return float(np.mean(recent))


def vision(folder: Path, steps: int, batch: int = 32) -> dict[str, Any]:
    """Trains the ViT and writes its folder."""
    from transformers import ViTConfig, ViTModel

    chosen = SETTINGS.encoder
    config = ViTConfig(
        hidden_size=chosen.width,
        num_hidden_layers=chosen.layers,
        num_attention_heads=chosen.attention_heads,
        intermediate_size=4 * chosen.width,
        image_size=chosen.image_size,
        patch_size=chosen.patch,
        hidden_dropout_prob=SETTINGS.dropout,
        attention_probs_dropout_prob=0.0,
    )
    model, head = ViTModel(config, add_pooling_layer=False), nn.Linear(2 * chosen.width, len(CONDITIONS))
    images, targets = studies(chosen.stored_size)
    held = PATIENTS * 2
    generator = torch.Generator().manual_seed(0)

    def logits(x: Tensor) -> Tensor:
        tokens = model(pixel_values=(x.expand(-1, 3, -1, -1) - 0.5) / 0.5).last_hidden_state[:, 1:]
        return head(torch.cat([tokens.mean(1), tokens.amax(1)], 1))

    def losses() -> Iterator[Tensor]:
        while True:
            rows = torch.randint(held, len(images), (batch,), generator=generator)
            x = augment(images[rows], chosen.image_size, 5.0, generator)
            yield F.binary_cross_entropy_with_logits(logits(x), targets[rows], pos_weight=torch.tensor(2.0))

    loss = train([*model.parameters(), *head.parameters()], losses(), steps, "ViT")
    model.eval()
    margin = (chosen.stored_size - chosen.image_size) // 2
    inner = slice(margin, margin + chosen.image_size)
    with torch.no_grad():
        found = torch.cat([logits(part[:, :, inner, inner]) for part in images[:held].split(50)]) > 0
    model.save_pretrained(folder)
    said = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    gold = targets[:held] > 0
    f1 = 2 * (found & gold).sum() / (found.sum() + gold.sum())
    return {"images": len(images) - held, "loss": loss, "held-out micro F1": float(f1)}


def language(folder: Path, steps: int, batch: int = 16) -> dict[str, Any]:
    """Trains tokenizer and GPT-2 and writes their folder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    profiles = pretraining_hospitals(10 * HOSPITALS)
    reports = [s.report for s in itertools.chain.from_iterable(generate_reports(p, 20) for p in profiles)]
    tokenizer = new_tokenizer(reports)
    chosen = SETTINGS.decoder
    config = GPT2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        n_embd=chosen.width,
        n_layer=chosen.layers,
        n_head=chosen.attention_heads,
        n_positions=chosen.positions,
        resid_pdrop=SETTINGS.dropout,
        embd_pdrop=SETTINGS.dropout,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    rows = [ids[: chosen.positions - 2] for ids in tokenizer(reports, add_special_tokens=False)["input_ids"]]
    order = np.random.default_rng(0)

    def losses() -> Iterator[Tensor]:
        while True:
            drawn = sorted((rows[i] for i in order.integers(len(rows), size=8 * batch)), key=len)
            for start in order.permutation(range(0, len(drawn), batch)):
                part = [
                    [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id]
                    for ids in drawn[start : start + batch]
                ]
                ids, targets = padded(part)
                yield model(input_ids=ids, labels=targets).loss

    loss = train(list(model.parameters()), losses(), steps, "GPT-2")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"reports": len(rows), "loss": loss}


def new_tokenizer(reports: list[str]) -> Any:
    """Byte-level BPE, as GPT-2's own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    whole.train_from_iterator(reports, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(batch, length) ids and targets; -100 where padded."""
    length = max(len(row) for row in rows)
    ids, targets = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = targets[i, : len(row)] = torch.tensor(row)
    return ids, targets


def write_backbone(folder: Path, vision_steps: int = 500, language_steps: int = 400) -> None:
    """Writes `encoder/`, `decoder/` and `facts.json`, from the same seed every time."""
    torch.manual_seed(0)
    started = time.monotonic()
    facts: dict[str, Any] = {
        "language": language(folder / "decoder", language_steps),
        "vision": vision(folder / "encoder", vision_steps),
    }
    facts["seconds"] = round(time.monotonic() - started)
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vision-steps", type=int, default=500)
    parser.add_argument("--language-steps", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    write_backbone(given.folder, given.vision_steps, given.language_steps)


if __name__ == "__main__":
    main()
