# SPDX-License-Identifier: Apache-2.0
"""Training of one adapter by several processes of a site: each has a share of every batch.

Within `training_together`, where torch.distributed is set up (`worker.ranks`), loss and gradients are sums
over all processes divided by the tokens of the whole batch: each takes the step that one process would take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Row = TypeVar("Row")


_TOGETHER: ContextVar[bool] = ContextVar("together", default=False)


@contextmanager
def training_together(active: bool) -> Iterator[None]:
    """Let what trains inside share its batches with the other processes of the group, if `active`."""
    token = _TOGETHER.set(active)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def world_size() -> int:
    """Return how many processes train together; 1 where a site has one device."""
    return dist.get_world_size() if _TOGETHER.get() else 1


def share_of(batch: Sequence[Row]) -> tuple[Sequence[Row], float]:
    """Return this process's rows of a batch and their weight.

    A process for which none are left computes the first row with weight 0: it must take part in the sum.
    """
    size = world_size()
    if size == 1:
        return batch, 1.0
    rows = batch[dist.get_rank() :: size]
    return (rows, 1.0) if rows else (batch[:1], 0.0)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    if world_size() > 1:
        values = values.detach().clone()
        dist.all_reduce(values)
    return values


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients by their sums over all processes, in one exchange."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if world_size() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
