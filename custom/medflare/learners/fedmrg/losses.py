# SPDX-License-Identifier: Apache-2.0
"""The four losses of FedMRG as pure functions (paper Eq. 1, 3, 4, 5)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.report_generator import Decoded
from medflare.models.token_losses import divergence, word_loss


def contrastive(
    first: Tensor, second: Tensor, bank: Tensor, temperature: float, positive_in_denominator: bool = False
) -> Tensor:
    """Return L_hcl, mean over the 2N anchors (Eq. 3; MRG-1, MRG-2).

    Args:
        first, second: (N, C) unit features of two views of the same N images, row by row.
        bank: (K, C) unit features from other sites, without gradient; K may be 0.
        positive_in_denominator: InfoNCE; as printed (False) it is the decoupled loss, which may be negative.

    Returns:
        scalar; 0 where no anchor has a negative (N = 1 and an empty bank).
    """
    features = torch.cat([first, second])
    total = len(features)
    if total <= 2 and not len(bank) and not positive_in_denominator:
        return features.sum() * 0.0
    similar = features @ features.T / temperature
    partner = torch.arange(total, device=features.device).roll(len(first))
    positive = similar.gather(1, partner[:, None]).squeeze(1)
    left_out = torch.eye(total, dtype=torch.bool, device=features.device)
    if not positive_in_denominator:
        left_out = left_out | F.one_hot(partner, total).bool()
    others = similar.masked_fill(left_out, float("-inf"))
    if len(bank):
        others = torch.cat([others, features @ bank.detach().to(features.dtype).T / temperature], 1)
    return (others.logsumexp(1) - positive).mean()


def diagnosis(logits: Tensor, codes: Tensor) -> Tensor:
    """Mean over conditions of the 4-way cross-entropy. logits: (N, 14, 4); codes: (N, 14)."""
    return F.cross_entropy(logits.flatten(0, 1), codes.flatten())


def language(decoded: Decoded, words: Tensor) -> Tensor:
    """Mean negative log-likelihood per report token (Eq. 1). words: (K,) the tokens."""
    return word_loss(decoded.logits, words)


def distillation(
    student: Decoded,
    teacher: Decoded,
    temperature: float = 2.0,
    kl_direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    cosine_weight: float = 1.0,
) -> Tensor:
    """Return L_kd per report token: 1 − cos of hidden states + T² KL of softened distributions.

    cosine_weight: of the first term, which FedDAT does not have.

    The teacher is detached (MRG-10); KL(teacher‖student) unless turned around (MRG-9); averaged over report
    tokens, not over the batch alone (MRG-11).
    """
    pupil, other = student.softened(temperature), teacher.softened(temperature)
    kl = divergence(student.logits, pupil, other, temperature, kl_direction == "student_teacher")
    cosine = F.cosine_similarity(student.hidden, teacher.hidden.detach(), dim=-1).mean()
    return cosine_weight * (1 - cosine) + temperature**2 * kl
