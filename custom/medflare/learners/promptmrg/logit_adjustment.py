# SPDX-License-Identifier: Apache-2.0
"""Addition to the logits of positive diagnoses while training, so that rare ones are not given up.

Source: Jin et al., PromptMRG, AAAI 2024, section 3.3, after Menon et al., ICLR 2021; BL-11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from medflare.core.conditions import Code

LEAST = 1e-2
"""Smallest base value: an unseen condition would add −∞."""


def frequencies(codes: Tensor) -> Tensor:
    """Return how often each condition is positive, (14,), over the most frequent one.

    Args:
        codes: (n, 14) of the training reports.
    """
    return scaled((codes == int(Code.POSITIVE)).float().mean(0))


def scaled(values: Tensor) -> Tensor:
    """Return values over the largest one, at least LEAST; ones where all are 0."""
    largest = values.max() if values.numel() else torch.tensor(0.0)
    if largest <= 0:
        return torch.ones_like(values)
    return (values / largest).clamp(min=LEAST)


def positive_f1(predicted: Tensor, gold: Tensor) -> Tensor:
    """Return the F1 of each condition's positive code, (14,); 0 where neither has one.

    Args:
        predicted, gold: (n, 14) codes.
    """
    found, true = predicted == int(Code.POSITIVE), gold == int(Code.POSITIVE)
    hits = (found & true).sum(0).float()
    return 2 * hits / (found.sum(0) + true.sum(0)).clamp(min=1)


def adjusted(logits: Tensor, base: Tensor) -> Tensor:
    """Return logits (N, 14, 4) with log(base) (14,) added to those of the positive code."""
    change = torch.zeros_like(logits[0])
    change[:, int(Code.POSITIVE)] = base.log().to(logits.dtype)
    return logits + change
