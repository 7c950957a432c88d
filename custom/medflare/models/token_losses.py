# SPDX-License-Identifier: Apache-2.0
"""Losses over the vocabulary at each report token, with their gradients written out.

Autograd keeps and fills tensors of (tokens, vocabulary) that these need not, and reads each from memory
again and again: here a step does all it has to do with some rows while they are in the cache. Values and
gradients are those of PyTorch's own functions; tests/unit/models/test_token_losses.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

BLOCK = 2**17
"""Values of logits that are worked on together: half a megabyte, which stays in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Softened:
    """softmax(logits / temperature) over the vocabulary, without gradient.

    Attributes:
        logits, shares: (K, vocabulary); normalisers: (K,) log Σ exp(logits / temperature).
    """

    logits: Tensor
    shares: Tensor
    normalisers: Tensor

    @classmethod
    def of(cls, logits: Tensor, temperature: float) -> Softened:
        """Return it for logits (K, vocabulary)."""
        logits = logits.detach()
        shares = torch.empty_like(logits)
        normalisers = logits.new_empty(len(logits))
        for rows in blocks(logits):
            normalisers[rows] = softmax_into(shares[rows], logits[rows] / temperature)
        return cls(logits, shares, normalisers)


def blocks(logits: Tensor) -> Iterator[slice]:
    """Yield some rows of (K, vocabulary) after the other, `BLOCK` values at a time."""
    step = max(BLOCK // logits.shape[1], 1)
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


def softmax_into(out: Tensor, logits: Tensor) -> Tensor:
    """Write softmax(logits) into `out`, both (K, vocabulary), and return log Σ exp(logits), (K,)."""
    torch.softmax(logits, -1, out=out)
    return logits.amax(-1) - out.amax(-1).log()


def word_loss(logits: Tensor, words: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of words (K,) under logits (K, vocabulary) in fp32."""
    loss: Tensor = _WordLoss.apply(logits, words)
    return loss


def divergence(
    logits: Tensor, student: Softened, teacher: Softened, temperature: float, towards_teacher: bool
) -> Tensor:
    """Return the mean over tokens of KL between a student's and a teacher's softened distributions.

    The gradient goes to the student's logits.

    Args:
        logits: (K, vocabulary) of the student.
        student: `Softened.of(logits, temperature)`; teacher: of its logits.
        towards_teacher: KL(student‖teacher) in place of KL(teacher‖student).
    """
    made: Tensor = _Divergence.apply(logits, student, teacher, temperature, towards_teacher)
    return made


class _WordLoss(Function):
    """The gradient is made with the value, in the place of the log-likelihoods."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, words: Tensor) -> Tensor:
        shares = torch.empty_like(logits)  # (K, vocabulary)
        normalisers = logits.new_empty(len(logits))
        for rows in blocks(logits):
            normalisers[rows] = softmax_into(shares[rows], logits[rows])
            shares[rows].div_(len(logits))
        if ctx.needs_input_grad[0]:
            shares.scatter_add_(1, words[:, None], shares.new_full((len(words), 1), -1 / len(words)))
            ctx.save_for_backward(shares)
        return (normalisers - logits.gather(1, words[:, None]).squeeze(1)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (shares,) = ctx.saved_tensors
        (grad,) = grads
        as_it_is = grad.device.type == "cpu" and grad.item() == 1.0
        return shares if as_it_is else shares * grad, None


class _Divergence(Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        student: Softened,
        teacher: Softened,
        temperature: float,
        towards_teacher: bool,
    ) -> Tensor:
        given, other = (student, teacher) if towards_teacher else (teacher, student)
        rows = logits.new_empty(len(logits))  # KL at each token
        for at in blocks(logits):
            difference = given.logits[at] - other.logits[at]  # (some of K, vocabulary)
            rows[at] = torch.linalg.vecdot(given.shares[at], difference)
        rows.div_(temperature).sub_(given.normalisers).add_(other.normalisers)
        ctx.temperature, ctx.towards_teacher = temperature, towards_teacher
        ctx.save_for_backward(student.shares, teacher.shares, student.logits, teacher.logits)
        return rows.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        shares, others, logits, other_logits = ctx.saved_tensors
        change = torch.empty_like(shares)
        scale = grads[0] / (ctx.temperature * len(shares))
        for at in blocks(shares):
            if ctx.towards_teacher:
                difference = (logits[at] - other_logits[at]).div_(ctx.temperature)
                mean = torch.linalg.vecdot(shares[at], difference)[:, None]
                torch.mul(shares[at], difference.sub_(mean), out=change[at])
            else:
                torch.sub(shares[at], others[at], out=change[at])
            change[at].mul_(scale)
        return change, None, None, None, None
