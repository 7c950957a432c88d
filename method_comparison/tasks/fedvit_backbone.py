# SPDX-License-Identifier: Apache-2.0
"""A small ViT and a small GPT-2 as local folders, pretrained on synthetic hospitals that no study uses.

    python -m method_comparison.tasks.fedvit_backbone models/small-vit-gpt2

They stand in for ViT-B/16 and GPT-2, which cannot be shipped: the ViT learns to name conditions and their
sides in radiographs, the GPT-2 to continue reports. The layers are those of the small new model of
jobs/fedvit_gpt2 with a convolutional stem before the ViT (models.vit_stem), the vocabulary is smaller. It
counts as trained when its macro AUC on held-out hospitals is 0.85 or more (VG-12). Then the cross-attention
between both learns to read it on the same hospitals, with the ViT at a fiftieth of the rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS
from medflare.core.errors import ConfigError
from medflare.data.images import augment, centre
from medflare.learners.optim import adamw, cosine, scale_rates
from medflare.models.padding import pad
from medflare.models.vit_gpt2 import ViTGPT2Settings, ViTSettings
from medflare.models.vit_gpt2_folder import load_vit_gpt2
from medflare.models.vit_stem import KEY, new_vit
from medflare.synthetic import SyntheticStudy
from medflare.synthetic.hospitals import generate, generate_reports
from medflare.synthetic.profiles import pretraining_hospitals

SETTINGS = ViTGPT2Settings(encoder=ViTSettings(stem_channels=(24, 48, 96)))
HOSPITALS, PATIENTS = 120, 75
HELD_OUT = 8 * PATIENTS
"""Studies of the first hospitals, of which the macro AUC is."""
LEAST_AUC = 0.85
ENOUGH, FEW_HOSPITALS = 200, 9
"""Fewer steps are a trial of the program, of so many hospitals and without the gate."""
WORDS = 1024
"""Of the vocabulary: a processor spends most of its time on the output layer, and reports need no more."""
RATE = 2e-3


@dataclass(frozen=True)
class Seen:
    """Studies of hospitals that no comparison uses.

    Attributes:
        images: (studies, 1, size, size) half precision in [0, 1].
        targets: (studies, 39) 13 conditions x (anywhere, right, left): what is drawn, not what is reported.
        reports: as written.
    """

    images: Tensor
    targets: Tensor
    reports: list[str]


def studies(image_size: int, hospitals: int) -> Seen:
    """Return so many hospitals' studies; the first `HELD_OUT` are not trained on."""
    images, targets, reports = [], [], []
    for profile in pretraining_hospitals(hospitals):
        for study in generate(profile, PATIENTS, size=128):
            whole = torch.from_numpy(np.asarray(study.image))[None, None]
            small = F.interpolate(whole, (image_size, image_size), mode="bilinear", antialias=True)[0]
            images.append(small.half())
            targets.append(finding_targets(study))
            reports.append(study.report)
    return Seen(torch.stack(images), torch.tensor(targets), reports)


def finding_targets(study: SyntheticStudy) -> list[float]:
    """Return 13 conditions x (anywhere, right, left)."""
    rows = {name: [0.0, 0.0, 0.0] for name in CONDITIONS[:-1]}
    for finding in study.findings:
        row = rows[finding.condition]
        row[0] = 1.0
        row[1] = max(row[1], float("right" in finding.sides))
        row[2] = max(row[2], float("left" in finding.sides))
    return [value for row in rows.values() for value in row]


def train(
    groups: list[tuple[list[nn.Parameter], float]],
    losses: Iterator[Tensor],
    steps: int,
    name: str,
    every: int = 200,
) -> float:
    """Train groups of parameters, each at its own rate, with one cosine; return the last steps' mean loss."""
    parameters = [p for group, _ in groups for p in group]
    optimiser, recent = adamw(groups, 0.05), list[float]()
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


def vision(folder: Path, seen: Seen, steps: int, batch: int = 32) -> dict[str, Any]:
    """Train the ViT and write its folder; raise ConfigError where it stays blind.

    Raises:
        ConfigError: after `ENOUGH` steps or more the macro AUC on held-out hospitals is below `LEAST_AUC`.
    """
    from transformers import ViTConfig

    chosen = SETTINGS.encoder
    stem: dict[str, Any] = {KEY: list(chosen.stem_channels)}
    config = ViTConfig(
        hidden_size=chosen.width,
        num_hidden_layers=chosen.layers,
        num_attention_heads=chosen.attention_heads,
        intermediate_size=4 * chosen.width,
        image_size=chosen.image_size,
        patch_size=chosen.patch,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **stem,
    )
    model, head = new_vit(config), nn.Linear(2 * chosen.width, seen.targets.shape[1])
    generator = torch.Generator().manual_seed(0)

    def logits(x: Tensor) -> Tensor:
        tokens = model(pixel_values=(x.expand(-1, 3, -1, -1) - 0.5) / 0.5).last_hidden_state[:, 1:]
        return head(torch.cat([tokens.mean(1), tokens.amax(1)], 1))

    def losses() -> Iterator[Tensor]:
        while True:
            rows = torch.randint(HELD_OUT, len(seen.images), (batch,), generator=generator)
            x = augment(seen.images[rows].float(), chosen.image_size, 5.0, generator)
            yield F.binary_cross_entropy_with_logits(logits(x), seen.targets[rows])

    loss = train([([*model.parameters(), *head.parameters()], RATE)], losses(), steps, "ViT")
    model.eval()
    with torch.no_grad():
        parts = seen.images[:HELD_OUT].split(100)
        scores = torch.cat([logits(centre(part.float(), chosen.image_size)) for part in parts])
    found = macro_auc(scores, seen.targets[:HELD_OUT])
    if steps >= ENOUGH and found < LEAST_AUC:
        raise ConfigError(
            f"the ViT of the comparison has a macro AUC of {found:.3f} on held-out hospitals after {steps} "
            f"steps; VG-12 asks for {LEAST_AUC}. Train it for longer: settings.vision_steps."
        )
    model.save_pretrained(folder)
    said = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return {"images": len(seen.images) - HELD_OUT, "loss": loss, "held-out macro AUC": round(found, 3)}


def macro_auc(scores: Tensor, targets: Tensor) -> float:
    """Return the mean AUC of "anywhere" over the conditions that some studies have and others have not."""
    from sklearn.metrics import roc_auc_score

    columns = [i for i in range(0, targets.shape[1], 3) if 0 < targets[:, i].sum() < len(targets)]
    return float(np.mean([roc_auc_score(targets[:, i], scores[:, i]) for i in columns]))


def attention(folder: Path, seen: Seen, steps: int, batch: int = 16) -> dict[str, Any]:
    """Teach the cross-attention on images and reports; write the state to begin with, `start.safetensors`."""
    from safetensors.torch import save_file

    model = load_vit_gpt2(folder, "fp32", "cpu", SETTINGS, 0)
    model.train()
    generator, size = torch.Generator().manual_seed(1), SETTINGS.encoder.image_size
    rows = model.tokenise(seen.reports, SETTINGS.decoder.positions)

    def losses() -> Iterator[Tensor]:
        while True:
            taken = torch.randint(HELD_OUT, len(rows), (batch,), generator=generator)
            x = augment(seen.images[taken].float(), size, 5.0, generator)
            yield model.report_loss(x, *pad([rows[int(i)] for i in taken]))

    vit = list(model.network.encoder.parameters())
    others = [p for n, p in model.network.named_parameters() if not n.startswith("encoder.")]
    loss = train([(vit, RATE / 50), (others, RATE)], losses(), steps, "cross-attention")
    tensors = {name: value.detach().clone() for name, value in model.shared_tensors().items()}
    save_file(tensors, folder / "start.safetensors")
    return {"loss": loss, "steps": steps}


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

    loss = train([(list(model.parameters()), RATE / 2)], losses(), steps, "GPT-2")
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


def write_backbone(
    folder: Path, vision_steps: int = 2500, language_steps: int = 800, attention_steps: int = 2000
) -> None:
    """Write `encoder/`, `decoder/`, the common start and `facts.json`, from the same seed every time."""
    torch.manual_seed(0)
    started = time.process_time()
    few = max(vision_steps, attention_steps) < ENOUGH
    seen = studies(SETTINGS.encoder.stored_size, FEW_HOSPITALS if few else HOSPITALS)
    facts: dict[str, Any] = {
        "language": language(folder / "decoder", language_steps),
        "vision": vision(folder / "encoder", seen, vision_steps),
    }
    facts["attention"] = attention(folder, seen, attention_steps)
    facts["processor seconds"] = round(time.process_time() - started)
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vision-steps", type=int, default=2500)
    parser.add_argument("--language-steps", type=int, default=800)
    parser.add_argument("--attention-steps", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    write_backbone(given.folder, given.vision_steps, given.language_steps, given.attention_steps)


if __name__ == "__main__":
    main()
