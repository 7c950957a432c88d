# SPDX-License-Identifier: Apache-2.0
"""Batches of token rows of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

import torch
from torch import Tensor

IGNORED = -100
"""Target of a position that does not count in the loss; PyTorch's own default."""


def pad_rows(
    rows: Sequence[Sequence[int]], padding: int, device: torch.device | str = "cpu", *, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Return padded ids (N, T), int64, and the mask (N, T), 1 where there is a token."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids.to(device), mask.to(device)


def pad(token_rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return right-padded ids (N, T), int64, and targets (N, T) that are IGNORED at the padding."""
    ids, mask = pad_rows(token_rows, 0)
    return ids, ids.masked_fill(mask == 0, IGNORED)


def batches_by_length(rows: Sequence[Sized], size: int) -> Iterator[list[int]]:
    """Yield the indices of rows of similar length, `size` at a time, shortest first."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), size):
        yield order[start : start + size]
