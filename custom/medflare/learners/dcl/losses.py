# SPDX-License-Identifier: Apache-2.0
"""DCL's contrast over a queue with soft targets, and the pairs of its matching loss.

Source: Li et al., CVPR 2023, section 3.3, after Li et al., BLIP, ICML 2022.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_contrast(
    online: Tensor, momentum: Tensor, keys: Tensor, share: float, temperature: Tensor
) -> Tensor:
    """Return the mean cross-entropy of one side (images or reports) against the other side's keys.

    Args:
        online: (B, width) unit features by the networks that learn. momentum: by the momentum networks.
        keys: (B + Q, width) of the other side by the momentum networks; row b is the partner of row b.
        share: of the momentum networks' own distribution in the targets; the rest is on the partner.
    """
    partners = torch.zeros(len(online), len(keys), device=online.device)
    partners.fill_diagonal_(1.0)
    with torch.no_grad():
        soft = F.softmax(momentum @ keys.T / temperature, dim=1)
        targets = share * soft + (1 - share) * partners  # (B, B + Q)
    return -(F.log_softmax(online @ keys.T / temperature, dim=1) * targets).sum(1).mean()


def hard_negatives(similar: Tensor, generator: torch.Generator) -> Tensor:
    """Return for each row another row of the batch, (B,), drawn by how similar it is.

    Args:
        similar: (B, B) similarities over the temperature, of rows with partners.
    """
    # values that are not finite make the loss so too, and the learner refuses it by name
    weights = F.softmax(similar.detach().float().cpu(), dim=1).nan_to_num(0.0) + 1e-4
    weights.fill_diagonal_(0)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]
