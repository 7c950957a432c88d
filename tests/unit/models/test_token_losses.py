# SPDX-License-Identifier: Apache-2.0
"""Losses over the vocabulary have the values and gradients of PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from medflare.models.token_losses import Softened, divergence, word_loss

RANDOM = torch.Generator().manual_seed(0)
STUDENT, TEACHER = (3 * torch.randn(6, 11, generator=RANDOM) for _ in range(2))
WORDS = torch.tensor([0, 3, 10, 3, 7, 1])


def test_the_loss_of_words_is_cross_entropy() -> None:
    ours, theirs = (STUDENT.clone().requires_grad_() for _ in range(2))
    loss, expected = word_loss(ours, WORDS), F.cross_entropy(theirs, WORDS)
    (2.5 * loss).backward()
    (2.5 * expected).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-7)
    assert not word_loss(STUDENT, WORDS).requires_grad


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("towards_teacher", [False, True])
def test_divergence_is_kl_of_softened_distributions(temperature: float, towards_teacher: bool) -> None:
    ours, theirs = (STUDENT.clone().requires_grad_() for _ in range(2))
    student, teacher = Softened.of(ours, temperature), Softened.of(TEACHER, temperature)
    found = divergence(ours, student, teacher, temperature, towards_teacher)
    log_s, log_t = F.log_softmax(theirs / temperature, -1), F.log_softmax(TEACHER / temperature, -1)
    given, other = (log_s, log_t) if towards_teacher else (log_t, log_s)
    expected = F.kl_div(other, given, log_target=True, reduction="batchmean")
    (0.5 * found).backward()
    (0.5 * expected).backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-7)


def test_two_steps_on_one_value_do_not_change_what_was_kept() -> None:
    """`share_forward` differentiates A_s's outputs after they have taught."""
    logits = STUDENT.clone().requires_grad_()
    softened = Softened.of(logits, 2.0)
    before = softened.shares.clone()
    loss = word_loss(logits, WORDS) + divergence(logits, softened, Softened.of(TEACHER, 2.0), 2.0, False)
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits)[0])
    assert torch.equal(softened.shares, before)
