# SPDX-License-Identifier: Apache-2.0
"""Gradients of single patients, each clipped: DP-SGD (Abadi et al. 2016, algorithm 1) with patients as units.

Opacus's hooks give the gradient of every example of a batch in one backward pass. Those of one patient are
added before the norm is clipped, however many batches its examples are spread over: what is bounded is what a
patient changes, not what a note does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError, UpdateError
from medflare.differential_privacy.hookable import check_hookable

SummedLoss = Callable[[Sequence[int]], Tensor]
"""(rows) -> the sum of a loss of each row, which no other row of the batch enters."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Relative difference between the gradients of the examples, added, and torch's own gradient of the batch."""
_COARSE = 0.1


@dataclass(slots=True)
class ClippedSum:
    """Sum of clipped gradients of patients.

    Attributes:
        gradients: one tensor for each parameter, in its shape, fp32.
        patients: how many are in it; clipped: of them, those that were longer than the norm.
    """

    gradients: list[Tensor]
    patients: int = 0
    clipped: int = 0


class PatientGradients:
    """Sums clipped gradients of patients over one network; used inside `hooked`.

    Args:
        module: the network, with the parameters that learn.
        loss: of rows, as a sum over them.
        chunk: rows of one pass.
    """

    def __init__(self, module: nn.Module, loss: SummedLoss, chunk: int) -> None:
        self.module, self.loss, self.chunk = module, loss, chunk
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self._checked = False

    def of_patients(self, patients: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
        """Yield the summed gradient of each patient's rows, one tensor for each parameter, in fp32."""
        ends, rows = [], list[int]()
        for examples in patients:
            rows += examples
            ends.append(len(rows))
        summed, done = self._zeros(), 0
        for start in range(0, len(rows), self.chunk):
            part = rows[start : start + self.chunk]
            each = self._of_rows(part)
            place = start
            while place < start + len(part):
                end = min(ends[done], start + len(part))
                for total, gradient in zip(summed, each, strict=True):
                    total += gradient[place - start : end - start].sum(0)
                place = end
                if place == ends[done]:
                    yield summed
                    summed, done = self._zeros(), done + 1

    def clipped_sum(self, patients: Sequence[Sequence[int]], norm: float) -> ClippedSum:
        """Return the sum of the patients' gradients, each shortened to `norm` where it is longer.

        Args:
            patients: the rows of each, at least one; no patient at all is a sum of zeros.

        Raises:
            UpdateError: a patient's gradient is not finite.
        """
        result = ClippedSum(self._zeros())
        for gradient in self.of_patients(patients):
            length = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradient]))
            if not torch.isfinite(length):
                raise UpdateError(
                    "a patient's gradient is not finite; nothing of this round was kept. Lower "
                    "settings.optimiser.lr, or look for odd records with `medflare cohort inspect`."
                )
            factor = min(1.0, norm / max(length.item(), 1e-12))
            torch._foreach_add_(result.gradients, gradient, alpha=factor)
            result.patients += 1
            result.clipped += factor < 1
        return result

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p, dtype=torch.float32) for p in self.parameters]

    def _of_rows(self, rows: Sequence[int]) -> list[Tensor]:
        """Return each row's gradient, (rows, *shape) for each parameter; zeros of one that the loss does not
        reach."""
        for parameter in self.parameters:
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
        self.loss(rows).backward()
        found = []
        for parameter in self.parameters:
            each, whole = parameter.grad_sample, parameter.grad  # type: ignore[attr-defined]
            if each is None and whole is None:
                each = parameter.new_zeros((len(rows), *parameter.shape))
            if not isinstance(each, Tensor) or each.shape[0] != len(rows):
                raise self._unhooked(parameter)
            found.append(each)
            if not self._checked and whole is not None:
                self._check(parameter, each, whole)
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
        self._checked = True
        return found

    def _check(self, parameter: nn.Parameter, each: Tensor, whole: Tensor) -> None:
        """Refuse a parameter that is used beside its hooked layer: its examples would not add up."""
        difference = (each.float().sum(0) - whole.float()).norm()
        if difference > _TOLERANCE.get(each.dtype, _COARSE) * whole.float().norm() + 1e-6:
            raise self._unhooked(parameter)

    def _unhooked(self, parameter: nn.Parameter) -> ConfigError:
        name = next(n for n, p in self.module.named_parameters() if p is parameter)
        return ConfigError(
            f"settings.dp: '{name}' is used by the network in a way that Opacus's hooks do not see, so it "
            "has no gradient of single examples. Take another adapter (method lora), or leave dp out."
        )


@contextmanager
def hooked(module: nn.Module, loss: SummedLoss, chunk: int) -> Iterator[PatientGradients]:
    """Provide the patients' gradients of a network while Opacus's hooks are on its layers.

    Raises:
        ConfigError: as `check_hookable`.
    """
    check_hookable(module)
    from opacus.grad_sample import GradSampleHooks

    learned = [p for p in module.parameters() if p.requires_grad]
    hooks = GradSampleHooks(module, batch_first=True, loss_reduction="sum", strict=False)
    try:
        with warnings.catch_warnings():  # the embedding below the first adapter is frozen, as it should be
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield PatientGradients(module, loss, chunk)
    finally:
        hooks.remove_hooks()
        for parameter in learned:
            parameter.grad = None
            for name in ("grad_sample", "_forward_counter", "_current_grad_sample"):
                vars(parameter).pop(name, None)
        for layer in module.modules():
            for name in ("activations", "max_batch_len"):
                vars(layer).pop(name, None)
