# SPDX-License-Identifier: Apache-2.0
"""WCL's loss: each report against the images of its batch, similar patients counting more.

Source: Yan et al., Weakly Supervised Contrastive Learning for Chest X-Ray Report Generation, Findings of
EMNLP 2021, section 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_contrast(
    images: Tensor, reports: Tensor, clusters: Tensor, temperature: float, hard_weight: float
) -> Tensor:
    """Return the mean over reports and over images of −log of the pair's share of all weighted pairs.

    Args:
        images, reports: (N, width), row by row of one study; any length, they are normalised here.
        clusters: (N,) cluster of each report; negatives of the own cluster count `hard_weight` times.

    Returns:
        scalar; 0 where N = 1.
    """
    image, report = F.normalize(images, dim=1), F.normalize(reports, dim=1)
    similar = report @ image.T / temperature  # (N, N), the diagonal are the pairs
    same = clusters[:, None] == clusters[None]
    weights = torch.where(same, hard_weight, 1.0).to(similar.dtype)
    weights.fill_diagonal_(1.0)
    weighted = similar + weights.clamp(min=torch.finfo(similar.dtype).tiny).log()
    pairs = similar.diagonal()
    losses = (weighted.logsumexp(1) - pairs).mean() + (weighted.logsumexp(0) - pairs).mean()
    return losses / 2
