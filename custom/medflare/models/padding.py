# SPDX-License-Identifier: Apache-2.0
"""Batches of token rows of unequal length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IGNORED = -100
"""Target of a position that does not count in the loss; PyTorch's own default."""


def pad(token_rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return right-padded ids (N, T), int64, and targets (N, T) that are IGNORED at the padding."""
    longest = max(len(row) for row in token_rows)
    ids = torch.zeros(len(token_rows), longest, dtype=torch.long)
    targets = torch.full_like(ids, IGNORED)
    for i, row in enumerate(token_rows):
        ids[i, : len(row)] = torch.tensor(row)
        targets[i, : len(row)] = ids[i, : len(row)]
    return ids, targets
