# SPDX-License-Identifier: Apache-2.0
"""Evaluation mode for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Set eval mode inside, and the former mode after."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


class EvaluatedModule(nn.Module):
    """A module with `evaluating`."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Set eval mode inside, and the former mode after."""
        return evaluation_mode(self)
