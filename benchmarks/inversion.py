# SPDX-License-Identifier: Apache-2.0
"""Words of one short note from a single LoRA gradient, seen alone or inside a sum of three sites.

The attacker knows the model, the adapter, the wording and a dictionary, and searches word by word for the
text whose gradient points in the direction that was seen (gradient matching: Zhu et al., NeurIPS 2019; by
cosine: Geiping et al., NeurIPS 2020). Under masks the server sees sums only.

    python benchmarks/inversion.py --notes 6
"""

from __future__ import annotations

import argparse
import json
import random

import torch
from scipy.stats import binomtest
from torch import Tensor

from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.text_model import TextModel

WORDS = (
    *("lung", "heart", "liver", "edema", "clear", "right", "left", "small", "large", "node", "rib", "mild"),
    *("effusion", "normal", "stable", "chronic", "acute", "chest", "pain", "fever"),
)
SOURCE, TARGET = 3, 2
"""Words of a note's findings and of its impression."""


def gradient(model: TextModel, words: list[str]) -> Tensor:
    """Return the gradient of one note's loss with respect to all LoRA factors, (P,)."""
    prompt = f"Findings: {' '.join(words[:SOURCE])}\nImpression:"
    rows = model.sequences([prompt], [f" {' '.join(words[SOURCE:])}"])
    parameters = model.adapters.parameters(GENERIC)
    loss, _ = model.loss(rows, alone=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    parts = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in parts])


def reconstruct(model: TextModel, seen: Tensor, rng: random.Random, starts: int) -> list[str]:
    """Return the words whose gradient is nearest in direction, by coordinate search from random texts."""

    def likeness(words: list[str]) -> float:
        return float(torch.cosine_similarity(gradient(model, words), seen, dim=0))

    best = (-2.0, list[str]())
    for _ in range(starts):
        words = rng.choices(WORDS, k=SOURCE + TARGET)
        score, improved = likeness(words), True
        while improved:
            improved = False
            for place in [*range(SOURCE, SOURCE + TARGET), *range(SOURCE)]:  # the answer weighs most
                tried = [[*words[:place], word, *words[place + 1 :]] for word in WORDS]
                top, candidate = max((likeness(text), text) for text in tried)
                if top > score + 1e-7:
                    score, words, improved = top, candidate, True
        best = max(best, (score, words))
    return best[1]


def main() -> None:
    """Print the share of words found, for a gradient alone and inside a sum of three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=6)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone(None, "fp32", "cpu", "notes_decoder")
    settings = LoraSettings(rank=4, lora_alpha=8, targets=("q_proj", "v_proj"), dropout=0.0)
    model = TextModel(backbone, settings, (GENERIC,), chosen.seed)
    model.adapters.use((GENERIC,), train=(GENERIC,))
    backbone.model.eval()
    rng, right = random.Random(chosen.seed), {"alone": 0, "sum of 3": 0}
    for _ in range(chosen.notes):
        notes = [rng.choices(WORDS, k=SOURCE + TARGET) for _ in range(3)]
        gradients = [gradient(model, note) for note in notes]
        for name, seen in (("alone", gradients[0]), ("sum of 3", torch.stack(gradients).sum(0))):
            found = reconstruct(model, seen, rng, chosen.starts)
            right[name] += sum(a == b for a, b in zip(found, notes[0], strict=True))
    total = chosen.notes * (SOURCE + TARGET)
    result = {}
    for name, count in right.items():
        ends = binomtest(count, total).proportion_ci(method="exact")
        result[name] = {"right": count, "of": total, "low": ends.low, "high": ends.high}
    print(json.dumps({**result, "chance": 1 / len(WORDS)}, indent=1))


if __name__ == "__main__":
    main()
