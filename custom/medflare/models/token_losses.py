# SPDX-License-Identifier: Apache-2.0
"""Losses over the vocabulary at each report token, with their gradients written out.

Autograd keeps and fills tensors of (tokens, vocabulary) that these need not: an eighth of a FedMRG
mini-batch. Values and gradients are those of PyTorch's own functions; tests/unit/models/test_token_losses.py
compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class Softened:
    """Distributions over the vocabulary at a temperature, without gradient. log, shares: (K, vocabulary)."""

    log: Tensor
    shares: Tensor

    @classmethod
    def of(cls, logits: Tensor, temperature: float) -> Softened:
        """Return softmax(logits / temperature) of logits (K, vocabulary), and its logarithm."""
        log = torch.log_softmax(logits.detach() / temperature, -1)
        return cls(log, log.exp())


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
        shares = torch.log_softmax(logits, -1)  # (K, vocabulary)
        loss = -shares.gather(1, words[:, None]).mean()
        if ctx.needs_input_grad[0]:
            shares.exp_().scatter_add_(1, words[:, None], shares.new_full((len(words), 1), -1.0))
            ctx.save_for_backward(shares)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (shares,) = ctx.saved_tensors
        return shares * (grads[0] / len(shares)), None


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
        difference = given.log - other.log  # (K, vocabulary)
        ctx.scale = 1 / (temperature * len(logits))
        if towards_teacher:
            rows = (given.shares * difference).sum(-1, keepdim=True)  # (K, 1)
            ctx.save_for_backward(given.shares, difference, rows)
            return rows.mean()
        ctx.save_for_backward(student.shares, teacher.shares)
        return torch.dot(given.shares.flatten(), difference.flatten()) / len(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        shares, other, *rows = ctx.saved_tensors
        change = shares * (other - rows[0]) if rows else shares - other
        return change.mul_(grads[0] * ctx.scale), None, None, None, None
