# SPDX-License-Identifier: Apache-2.0
"""Losses over the vocabulary have the values and gradients of PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.token_losses import Softened, divergence, word_loss

RANDOM = torch.Generator().manual_seed(0)
STUDENT, TEACHER = (3 * torch.randn(6, 11, generator=RANDOM) for _ in range(2))
WORDS = torch.tensor([0, 3, 10, 3, 7, 1])


@pytest.fixture(params=[1, 22, 2**17], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of logits at a time, two, and all six."""
    monkeypatch.setattr("medflare.models.token_losses.BLOCK", request.param)


def differentiated(loss: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
    """Return a loss of the student's logits, and the gradient of 2.5 times it."""
    logits = STUDENT.clone().requires_grad_()
    value = loss(logits)
    (2.5 * value).backward()
    assert logits.grad is not None
    return value.item(), logits.grad


def test_the_loss_of_words_is_cross_entropy() -> None:
    value, gradient = differentiated(lambda logits: word_loss(logits, WORDS))
    expected, wanted = differentiated(lambda logits: F.cross_entropy(logits, WORDS))
    assert value == pytest.approx(expected, rel=1e-6)
    assert torch.allclose(gradient, wanted, atol=1e-7)
    assert not word_loss(STUDENT, WORDS).requires_grad


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("towards_teacher", [False, True])
def test_divergence_is_kl_of_softened_distributions(temperature: float, towards_teacher: bool) -> None:
    def ours(logits: Tensor) -> Tensor:
        student, teacher = Softened.of(logits, temperature), Softened.of(TEACHER, temperature)
        return divergence(logits, student, teacher, temperature, towards_teacher)

    def by_pytorch(logits: Tensor) -> Tensor:
        log_s, log_t = (F.log_softmax(each / temperature, -1) for each in (logits, TEACHER))
        given, other = (log_s, log_t) if towards_teacher else (log_t, log_s)
        return F.kl_div(other, given, log_target=True, reduction="batchmean")

    (value, gradient), (expected, wanted) = differentiated(ours), differentiated(by_pytorch)
    assert value == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(gradient, wanted, atol=1e-7)


def test_two_steps_on_one_value_do_not_change_what_was_kept() -> None:
    """`share_forward` differentiates A_s's outputs after they have taught."""
    logits = STUDENT.clone().requires_grad_()
    softened = Softened.of(logits, 2.0)
    before = softened.shares.clone()
    loss = word_loss(logits, WORDS) + divergence(logits, softened, Softened.of(TEACHER, 2.0), 2.0, False)
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits)[0])
    assert torch.equal(softened.shares, before)
