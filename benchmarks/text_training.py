# SPDX-License-Identifier: Apache-2.0
"""What an epoch of text training costs: `python benchmarks/text_training.py --notes FOLDER`.

All ways train on the same questions about the same annotated notes (BRAT), one after the other in every
repetition, in one process and one thread; a ratio is of the same repetition, so that a busy machine hits all
alike. Seconds are those of the processor. A sample of batches stands for the epoch. The loss of each way is
that of the same adapter on the same batches, and at the end that after the same steps of AdamW.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from full_wording import LONGEST, use_full_wording
from medflare.core.data_order import batches
from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.learners.extraction.learner import build as build_learner
from medflare.models.adapters.base import GENERIC
from medflare.models.text_model import Sequenced

BASE = "short wording, padded rows, bf16"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train."""

    precision: str
    packs: bool
    full_wording: bool = False
    dropout: float = 0.0
    fused: bool = False


WAYS: dict[str, Way] = {
    "full wording, dropout, padded rows, bf16": Way("bf16", False, True, 0.05),
    "short wording, padded rows, fp32": Way("fp32", False),
    BASE: Way("bf16", False),
    "short wording, shared beginnings, fp32": Way("fp32", True),
    "short wording, shared beginnings, bf16": Way("bf16", True),
    "short wording, shared beginnings, nf4": Way("nf4", True),
    "short wording, shared beginnings, fused, fp32": Way("fp32", True, fused=True),
    "short wording, shared beginnings, fused, bf16": Way("bf16", True, fused=True),
}


def make(way: Way, given: argparse.Namespace) -> ExtractionLearner:
    """Return a site's learner as the preset `instruct` sets it, but for what the way changes."""
    site = SiteConfig.model_validate(
        {
            "name": "site-1",
            "cohort": {"format": "brat", "root": str(given.notes), "label_map": "mtsamples"},
            "backbone": {"name": given.model, "precision": way.precision},
            "device": "cpu",
        }
    )
    lora = {"dropout": way.dropout}
    learner = build_learner({"preset": "instruct", "max_tokens": LONGEST, "lora": lora}, site, 0)
    if way.full_wording:
        use_full_wording(learner)
    with torch.no_grad():  # factors B are zero at first, and A would have no gradient
        generator = torch.Generator().manual_seed(1)
        for parameter in learner.model.adapters.parameters(GENERIC):
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    learner.adapter.use(train=True)
    learner.model.backbone.model.train()
    if not way.fused:
        learner.model.fused = None
    return learner


def one_epoch(learner: ExtractionLearner, way: Way, sample: list[list[int]]) -> tuple[float, float, int]:
    """Return processor seconds, loss of a token and tokens of a forward and backward pass of each batch."""
    learner.model.packs = way.packs
    total, count, tokens, started = 0.0, 0, 0, time.process_time()
    for part in sample:
        rows: list[Sequenced] = [learner.train_rows[i] for i in part]
        loss, answers = learner.model.loss(rows)
        (loss / answers).backward()
        total, count, tokens = total + loss.item(), count + answers, tokens + sum(len(r.ids) for r in rows)
    seconds = time.process_time() - started
    for parameter in learner.model.adapters.parameters(GENERIC):
        parameter.grad = None
    return seconds, total / count, tokens


def trained_loss(learner: ExtractionLearner, way: Way, sample: list[list[int]], steps: int) -> float:
    """Return the mean loss of a token over the last quarter of some AdamW steps from the same adapter."""
    learner.model.packs = way.packs
    optimiser = torch.optim.AdamW(learner.model.adapters.parameters(GENERIC), 5e-4, weight_decay=0.0)
    losses = []
    for step in range(steps):
        rows = [learner.train_rows[i] for i in sample[step % len(sample)]]
        loss, answers = learner.model.loss(rows)
        optimiser.zero_grad()
        (loss / answers).backward()
        optimiser.step()
        losses.append(loss.item() / answers)
    return statistics.fmean(losses[-max(steps // 4, 1) :])


def frozen_bytes(learner: ExtractionLearner) -> int:
    """Return the bytes of the backbone's weights as they lie in memory, without the adapter."""
    frozen = [p for p in learner.model.backbone.model.parameters() if not p.requires_grad]
    return sum(p.numel() * p.element_size() for p in frozen)


def attention_milliseconds() -> dict[str, dict[str, float]]:
    """Return milliseconds of attention over 8 rows of 92 tokens, 9 heads of 64: forward and backward."""
    mask = torch.ones(92, 92, dtype=torch.bool).tril()

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) * 64**-0.5).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v

    kinds: dict[str, Callable[..., Tensor]] = {"fused": fused, "written out": written_out}
    found: dict[str, dict[str, float]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for name, attention in kinds.items():
            best = {"forward": 1e9, "backward": 1e9}
            for _ in range(12):
                parts = [torch.randn(8, 9, 92, 64).to(dtype).requires_grad_() for _ in range(3)]
                begun = time.process_time()
                out = attention(*parts)
                between = time.process_time()
                out.backward(torch.ones_like(out))
                best["forward"] = min(best["forward"], 1000 * (between - begun))
                best["backward"] = min(best["backward"], 1000 * (time.process_time() - between))
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = best
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notes", type=Path, required=True, help="folder of .txt and .ann files")
    parser.add_argument("--model", default="smollm2", help="as `medflare models list` shows it")
    parser.add_argument("--batches", type=int, default=4, help="of 8 questions, which stand for the epoch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16, help="of AdamW for the loss after training; 0: none")
    listed = "; ".join(f"{number}: {name}" for number, name in enumerate(WAYS))
    parser.add_argument("--ways", default=",".join(map(str, range(len(WAYS)))), help=f"numbers of {listed}")
    parser.add_argument("--out", type=Path, help="JSON of all numbers")
    given = parser.parse_args()
    chosen = {list(WAYS)[int(number)] for number in given.ways.split(",")} | {BASE}
    ways = {name: way for name, way in WAYS.items() if name in chosen}
    torch.set_num_threads(1)
    learners = {name: make(way, given) for name, way in ways.items()}
    lengths = [len(row.ids) for row in learners[BASE].train_rows]
    if any(len(learner.train_rows) != len(lengths) for learner in learners.values()):
        raise SystemExit("the ways have different questions; give shorter notes.")
    cut = sorted(batches(list(range(len(lengths))), lengths, 8, 0), key=lambda p: sum(lengths[i] for i in p))
    places = [int((i + 0.5) * len(cut) / given.batches) for i in range(given.batches)]
    sample = [cut[place] for place in places]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rows: dict[str, dict[str, Any]] = {name: {} for name in ways}
    for repeat in range(given.repeats + 1):  # the first one warms up
        for name, way in ways.items():
            taken, loss, tokens = one_epoch(learners[name], way, sample)
            rows[name] |= {"loss": loss, "tokens": tokens}
            if repeat:
                seconds[name].append(taken * len(cut) / len(sample))
    for name, way in ways.items():
        ratios = [base / own for base, own in zip(seconds[BASE], seconds[name], strict=True)]
        rows[name] |= {"frozen_bytes": frozen_bytes(learners[name])}
        rows[name] |= {"epoch_seconds": statistics.median(seconds[name])}
        rows[name] |= {"faster": statistics.median(ratios), "between": [min(ratios), max(ratios)]}
        if given.steps:
            rows[name]["loss_after"] = trained_loss(learners[name], way, sample, given.steps)
    attention = attention_milliseconds()
    print(f"{len(lengths)} questions in {len(cut)} batches, {len(sample)} of them measured\n")
    print("| way | tokens | frozen MB | CPU s an epoch | times as fast [min, max] | loss | loss after |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, row in rows.items():
        low, high = row["between"]
        print(
            f"| {name} | {row['tokens']:,} | {row['frozen_bytes'] / 1e6:,.0f} | {row['epoch_seconds']:,.0f} "
            f"| {row['faster']:.2f} [{low:.2f}, {high:.2f}] | {row['loss']:.4f} "
            f"| {row.get('loss_after', float('nan')):.4f} |"
        )
    print("\n| attention | forward ms | backward ms |\n|---|---:|---:|")
    for name, best in attention.items():
        print(f"| {name} | {best['forward']:.2f} | {best['backward']:.2f} |")
    if given.out:
        result = {"questions": len(lengths), "ways": rows, "attention_ms": attention}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
