# SPDX-License-Identifier: Apache-2.0
"""Makes the embedded weights: `python -m tools.embedded_weights.reports --notes <mtsamples_raw.jsonl>`.

The decoder trains on synthetic reports (every twentieth batch, of a third the size, is CC0 notes), the
encoder on synthetic radiographs, both of `pretraining_hospitals`: seeds, scanners and style mixtures that no
experiment uses. About half an hour on one core; numbers may differ in the last digits between processors.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS
from medflare.data.images import augment, centre
from medflare.models.backbone import autocast, resolve_precision
from medflare.models.encoders import EncoderSettings, VisualEncoder
from medflare.synthetic import SyntheticStudy, generate, pretraining_hospitals
from tools.embedded_weights.cards import write_cards
from tools.embedded_weights.reports_corpus import (
    CODE_WORDS,
    CONDITION_WORDS,
    PROMPT_SETTINGS,
    SPECIAL,
    Kept,
    context,
    notes,
    studies,
)
from tools.embedded_weights.small_models import for_transformers, new_decoder, train_byte_level

HERE = Path(__file__).parents[2] / "custom" / "medflare" / "models" / "embedded"
VOCABULARY = 4096
POSITIONS = 512
RATE = 3e-3
PATIENTS = 120  # of each pretraining hospital; the first four hospitals are held out
IGNORED = -100


def train_tokenizer(texts: list[str]) -> Any:
    """Return a byte-level BPE tokenizer with a leading-space convention, wrapped for transformers."""
    return for_transformers(train_byte_level(texts, VOCABULARY, SPECIAL), SPECIAL, POSITIONS)


@dataclass(slots=True)
class Batch:
    """ids, marks, targets: (batch, length). `marks` is a second token at the same position, or -1."""

    ids: Tensor
    marks: Tensor
    targets: Tensor


def encode_batch(tokenizer: Any, contexts: list[tuple[str, tuple[int, ...]]], texts: list[str]) -> Batch:
    """`<s> <ctx> findings <dx> codes <rep> text </s>`; what stands before the text is not a target."""
    one = {word: tokenizer.convert_tokens_to_ids(word) for word in SPECIAL}
    own = torch.tensor([one[word] for word in CONDITION_WORDS])
    heads = []
    for words, codes in contexts:
        found = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
        said = [one[CODE_WORDS[code]] for code in codes]
        heads.append([one["<s>"], one["<ctx>"], *found, one["<dx>"], *said, one["<rep>"]])
    tails = [[*t[:200], one["</s>"]] for t in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    length = max(len(head) + len(tail) for head, tail in zip(heads, tails, strict=True))
    ids = torch.zeros(len(heads), length, dtype=torch.long)
    marks, targets = torch.full_like(ids, -1), torch.full_like(ids, IGNORED)
    for i, (head, tail) in enumerate(zip(heads, tails, strict=True)):
        end = len(head) + len(tail)
        ids[i, :end] = torch.tensor(head + tail)
        targets[i, len(head) : end] = ids[i, len(head) : end]
        if codes := contexts[i][1]:
            marks[i, len(head) - 1 - len(codes) : len(head) - 1] = own
    return Batch(ids, marks, targets)


def pretrain_decoder(steps: int, note_file: Path | None, seed: int = 0, batch: int = 24) -> dict[str, Any]:
    """Trains tokenizer and decoder, writes `decoder/`, returns what the model card states."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    corpus = list(studies(400, PATIENTS))
    held, corpus = corpus[: 4 * PATIENTS], corpus[4 * PATIENTS :]
    pieces = notes(note_file) if note_file else []
    tokenizer = train_tokenizer(
        [*(s.report for s in corpus[::3]), *pieces, *(context(s, rng, Kept(1, 0))[0] for s in corpus[:4000])]
    )
    model = new_decoder(len(tokenizer), POSITIONS)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05, betas=(0.9, 0.98))
    stream = _stream(corpus, pieces, tokenizer, rng, batch)
    precision, tokens, smooth = resolve_precision("auto", "cpu"), 0, 0.0
    for step in range(1, steps + 1):
        rate = RATE * min(1.0, step / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate
        examples = next(stream)
        with autocast(precision, "cpu"):
            loss = _loss(model, examples)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += int((examples.targets != IGNORED).sum())
        smooth = loss.item() if step == 1 else 0.98 * smooth + 0.02 * loss.item()
        if step % 50 == 0:
            print(f"decoder step {step} loss {smooth:.3f} tokens {tokens}", flush=True)
    facts = {"steps": steps, "target_tokens": tokens, "parameters": model.num_parameters()}
    facts |= _perplexities(model, tokenizer, held)
    _write_decoder(model, tokenizer)
    return facts


def _stream(
    corpus: list[SyntheticStudy], pieces: list[str], tokenizer: Any, rng: np.random.Generator, batch: int
) -> Iterator[Batch]:
    """Endless batches of similar length; every twentieth is notes without context."""
    while True:
        picked = [corpus[i] for i in rng.integers(len(corpus), size=19 * batch)]
        picked.sort(key=lambda study: len(study.report))
        groups = [picked[i : i + batch] for i in range(0, len(picked), batch)]
        for place in rng.permutation(len(groups)):
            group = groups[place]
            yield encode_batch(tokenizer, [context(s, rng, Kept()) for s in group], [s.report for s in group])
        if pieces:
            few = [pieces[i] for i in rng.integers(len(pieces), size=batch // 3)]
            yield encode_batch(tokenizer, [("", ())] * len(few), few)


def _loss(model: Any, batch: Batch) -> Tensor:
    """Next-token loss, logits computed at target positions only."""
    table = model.get_input_embeddings()
    inputs = table(batch.ids[:, :-1])
    marks = batch.marks[:, :-1, None]
    inputs = inputs + table(marks[..., 0].clamp_min(0)) * (marks >= 0)
    hidden = model.get_decoder()(inputs_embeds=inputs).last_hidden_state
    kept = batch.targets[:, 1:] != IGNORED
    return F.cross_entropy(model.lm_head(hidden[kept]).float(), batch.targets[:, 1:][kept])


@torch.no_grad()
def _perplexities(model: Any, tokenizer: Any, held: list[SyntheticStudy]) -> dict[str, float]:
    """Perplexity on held-out hospitals with nothing, findings, codes, or both in the context."""
    found = {}
    for name, kept in (
        ("none", Kept(0, 0)),
        ("findings", Kept(1, 0)),
        ("codes", Kept(0, 1)),
        ("both", Kept(1, 1)),
    ):
        rng = np.random.default_rng(1)
        batch = encode_batch(tokenizer, [context(s, rng, kept) for s in held], [s.report for s in held])
        found[f"perplexity_{name}"] = round(math.exp(_loss(model, batch).item()), 3)
    return found


def _write_decoder(model: Any, tokenizer: Any) -> None:
    """bf16 safetensors: half the size; every site loads the same bytes."""
    folder = HERE / "decoder"
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "medflare_prompt.json").write_text(
        json.dumps(PROMPT_SETTINGS, indent=1) + "\n", encoding="utf-8"
    )


def encoder_targets(study: SyntheticStudy) -> list[float]:
    """13 conditions x (anywhere, right, left): what is drawn in the picture, not what the report says."""
    rows = {name: [0.0, 0.0, 0.0] for name in CONDITIONS[:-1]}
    for finding in study.findings:
        row = rows[finding.condition]
        row[0] = 1.0
        row[1] = max(row[1], float("right" in finding.sides))
        row[2] = max(row[2], float("left" in finding.sides))
    return [value for row in rows.values() for value in row]


def pretrain_encoder(
    images: int, steps: int, seed: int = 0, batch: int = 48, size: int = 96
) -> dict[str, Any]:
    """Trains the small encoder as a classifier of findings and sides, writes `encoder/`."""
    torch.manual_seed(seed)
    settings = EncoderSettings(name="small", weights="none", image_size=size)
    per = 12
    pictures, rows = [], []
    for profile in pretraining_hospitals(images // per):
        for study in generate(profile, per, size=128):
            pictures.append(torch.from_numpy(study.image))
            rows.append(encoder_targets(study))
    x = F.interpolate(
        torch.stack(pictures)[:, None], size=settings.stored_size, mode="bilinear", antialias=True
    ).half()
    y = torch.tensor(rows)
    held = max(len(x) // (10 * per), 1) * per
    encoder = VisualEncoder(settings)
    head = nn.Linear(encoder.width, y.shape[1])
    optimiser = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        picked = held + torch.randint(len(x) - held, (batch,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(
            head(encoder(augment(x[picked].float(), size, 5.0, generator))[1]), y[picked]
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 200 == 0:
            print(f"encoder step {step} loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        scores = head(encoder(centre(x[:held].float(), size))[1])
    (HERE / "encoder").mkdir(exist_ok=True)
    save_file(encoder.trunk.state_dict(), HERE / "encoder" / "encoder.safetensors")
    return {"images": len(x) - held, "steps": steps, "held_out": held} | _aucs(scores, y[:held])


def _aucs(scores: Tensor, truth: Tensor) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    each = {}
    for i, name in enumerate(CONDITIONS[:-1]):
        column = truth[:, 3 * i]
        if 0 < column.sum() < len(column):
            each[name] = round(float(roc_auc_score(column, scores[:, 3 * i])), 3)
    return {"auc": each, "macro_auc": round(float(np.mean(list(each.values()))), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notes", type=Path, help="JSONL of CC0 notes with a 'text' key (MTSamples)")
    parser.add_argument("--decoder-steps", type=int, default=2400)
    parser.add_argument("--images", type=int, default=9000)
    parser.add_argument("--encoder-steps", type=int, default=2500)
    parser.add_argument("--only", choices=("decoder", "encoder"))
    given = parser.parse_args()
    made = {}
    if given.only != "decoder":
        made["encoder"] = pretrain_encoder(given.images, given.encoder_steps)
    if given.only != "encoder":
        made["decoder"] = pretrain_decoder(given.decoder_steps, given.notes)
    record = HERE / "facts.json"
    facts = (json.loads(record.read_text()) if record.is_file() else {}) | made
    record.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    write_cards(HERE, facts)
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
