# SPDX-License-Identifier: Apache-2.0
"""One radiograph from a single gradient of FedViT-GPT2, seen alone or inside a sum of three sites.

A Vision Transformer gives its input away in closed form (Lu et al., CVPR 2022): the gradient of the position
table is that of every patch's embedding, Δ (patches, width), that of the patch projection is Δᵀ X, and X
(patches, pixels) is the solution of a linear system. Neither model nor report need be known. Under masks the
server sees sums only. A picture counts as recognised where, of all pictures of the folder, the original
correlates most with what was found.

    python benchmarks/image_inversion.py --pictures FOLDER --targets 20
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from scipy.stats import binomtest
from torch import Tensor

from medflare.models.vit_gpt2 import ViTGPT2, ViTGPT2Settings
from medflare.models.vit_gpt2_folder import load_vit_gpt2

SIDE, PATCH, WIDTH, WORDS, SITES = 64, 8, 128, 8, 3
PART = {"layers": 2, "width": WIDTH, "attention_heads": 2}


def pictures(folder: Path, most: int) -> Tensor:
    """Return the first pictures of a folder, grey squares (N, 1, SIDE, SIDE) in [0, 1]."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg"))[:most]
    grey = [np.asarray(ImageOps.fit(Image.open(file).convert("L"), (SIDE, SIDE))) for file in files]
    return torch.from_numpy(np.stack(grey)).float().unsqueeze(1) / 255


def gradients(model: ViTGPT2, image: Tensor, report: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the position table, (patches, width), and of the patch projection,
    (width, 3 · PATCH²), of the loss of report (1, T) of image (1, 1, H, W)."""
    table = model.network.encoder.embeddings
    learned = (table.position_embeddings, table.patch_embeddings.projection.weight)
    logits = model.logits(image, report)  # (1, T, vocabulary)
    loss = F.cross_entropy(logits.flatten(0, 1), report.flatten())
    position, projection = torch.autograd.grad(loss, learned)
    return position[0, 1:], projection.flatten(1)  # the first position is no patch's


def reconstruct(model: ViTGPT2, position: Tensor, projection: Tensor) -> Tensor:
    """Return the picture (1, 1, H, W) that these gradients are of."""
    solved = torch.linalg.lstsq(position.T.double(), projection.double()).solution  # (patches, 3 · PATCH²)
    whole = F.fold(solved.T[None].float(), (SIDE, SIDE), PATCH, stride=PATCH)  # (1, 3, H, W)
    return (whole * model.std + model.mean).mean(1, keepdim=True).clamp(0, 1)


def correlations(found: Tensor, originals: Tensor) -> Tensor:
    """Return the correlation of a picture with each original, (N,)."""
    both = torch.cat([found, originals]).flatten(1)
    both = both - both.mean(1, keepdim=True)
    both = both / both.norm(dim=1, keepdim=True).clamp(min=1e-9)
    return both[1:] @ both[0]


def main() -> None:
    """Print how near the pictures that were found are, for a gradient alone and inside a sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, required=True, help="folder of .png or .jpg")
    parser.add_argument("--most", type=int, default=200, help="pictures of the folder that are read")
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    shape = {"encoder": PART | {"image_size": SIDE, "patch": PATCH}, "decoder": PART | {"positions": 32}}
    settings = ViTGPT2Settings.model_validate({**shape, "dropout": 0.0})
    model = load_vit_gpt2(None, "fp32", "cpu", settings, given.seed)
    model.eval()
    originals = pictures(given.pictures, given.most)
    mean = originals.mean(0, keepdim=True)
    found: dict[str, list[float]] = {"alone": [], f"sum of {SITES}": [], "mean picture": []}
    right = dict.fromkeys(found, 0)
    for _ in range(given.targets):
        chosen = torch.randperm(len(originals))[:SITES].tolist()
        reports = torch.randint(5, 500, (SITES, 1, WORDS))
        parts = [
            gradients(model, originals[i, None], report) for i, report in zip(chosen, reports, strict=True)
        ]
        summed = [torch.stack(kind).sum(0) for kind in zip(*parts, strict=True)]
        guesses = {
            "alone": reconstruct(model, *parts[0]),
            f"sum of {SITES}": reconstruct(model, summed[0], summed[1]),
            "mean picture": mean,
        }
        for name, guess in guesses.items():
            likeness = correlations(guess, originals)
            found[name].append(float(likeness[chosen[0]]))
            right[name] += int(likeness.argmax()) == chosen[0]
    result = {}
    for name, values in found.items():
        ends = binomtest(right[name], given.targets).proportion_ci(method="exact")
        spread = [round(v, 3) for v in (min(values), statistics.fmean(values), max(values))]
        share = [round(ends.low, 2), round(ends.high, 2)]
        result[name] = {"correlation": spread, "recognised": right[name], "share": share}
    print(json.dumps({**result, "targets": given.targets, "pictures": len(originals)}))


if __name__ == "__main__":
    main()
