# SPDX-License-Identifier: Apache-2.0
"""FedMRG's losses against hand calculations and test vectors."""

import math

import pytest
import torch
import torch.nn.functional as F

from medflare.learners.fedmrg import losses
from medflare.learners.fedmrg.training import Batch
from medflare.models.padding import IGNORED, pad
from medflare.models.report_generator import Decoded

NO_BANK = torch.zeros(0, 4)


def orthogonal_pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    eye = torch.eye(4)[:n]
    return eye, eye.clone()


def test_vector_9_decoupled_loss_leaves_the_positive_out() -> None:
    assert losses.contrastive(*orthogonal_pairs(2), NO_BANK, 1.0).item() == pytest.approx(
        -math.log(math.e / 2)
    )
    assert losses.contrastive(*orthogonal_pairs(2), NO_BANK, 1.0).item() == pytest.approx(-0.3069, abs=1e-4)


def test_vector_9_infonce_keeps_it() -> None:
    result = losses.contrastive(*orthogonal_pairs(2), NO_BANK, 1.0, positive_in_denominator=True).item()
    assert result == pytest.approx(0.5514, abs=1e-4)


def test_contrastive_respects_the_lower_bound_of_mrg_1() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (F.normalize(torch.randn(8, 16, generator=generator), dim=1) for _ in range(2))
    tau, negatives = 0.07, 2 * 8 - 2
    assert losses.contrastive(first, second, torch.zeros(0, 16), tau).item() >= -2 / tau + math.log(negatives)


def test_bank_rows_only_add_negatives_and_get_no_gradient() -> None:
    first, second = orthogonal_pairs(2)
    bank = F.normalize(torch.ones(3, 4), dim=1).requires_grad_()
    first = first.clone().requires_grad_()
    with_bank = losses.contrastive(first, second, bank, 1.0)
    assert with_bank > losses.contrastive(first, second, NO_BANK, 1.0)
    with_bank.backward()
    assert bank.grad is None
    assert first.grad is not None


def by_hand(rows: list[list[float]], bank: list[list[float]], tau: float, keeps_positive: bool) -> float:
    """Eq. 3 one anchor after the other: row i of the first half and of the second are one image."""
    half, total = len(rows) // 2, 0.0
    for i, anchor in enumerate(rows):
        partner = (i + half) % len(rows)
        others = [row for j, row in enumerate(rows) if j != i and (keeps_positive or j != partner)]
        like = [
            math.exp(sum(map(math.prod, zip(anchor, row, strict=True))) / tau) for row in [*others, *bank]
        ]
        positive = sum(map(math.prod, zip(anchor, rows[partner], strict=True))) / tau
        total += math.log(sum(like)) - positive
    return total / len(rows)


@pytest.mark.parametrize("keeps_positive", [False, True])
@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("rows_of_bank", [0, 3])
def test_contrastive_is_eq_3_at_every_temperature(
    tau: float, rows_of_bank: int, keeps_positive: bool
) -> None:
    generator = torch.Generator().manual_seed(4)
    first, second, bank = (
        F.normalize(torch.randn(rows, 6, generator=generator), dim=1) for rows in (3, 3, rows_of_bank)
    )
    expected = by_hand([*first.tolist(), *second.tolist()], bank.tolist(), tau, keeps_positive)
    assert losses.contrastive(first, second, bank, tau, keeps_positive).item() == pytest.approx(
        expected, 1e-4
    )
    if rows_of_bank:
        rough = losses.contrastive(first, second, bank.bfloat16(), tau, keeps_positive)
        assert rough.item() == pytest.approx(expected, rel=0.05, abs=0.05)


def test_a_single_image_without_bank_has_no_contrast() -> None:
    assert losses.contrastive(*orthogonal_pairs(1), NO_BANK, 0.07).item() == 0.0


def decoded(generator: torch.Generator) -> Decoded:
    return Decoded(torch.randn(8, 7, generator=generator), torch.randn(8, 3, generator=generator))


def test_distillation_is_zero_between_equals_and_detaches_the_teacher() -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = decoded(generator), decoded(generator)
    assert losses.distillation(student, student).item() == pytest.approx(0.0, abs=1e-6)
    for tensor in (student.logits, student.hidden, teacher.logits, teacher.hidden):
        tensor.requires_grad_()
    losses.distillation(student, teacher).backward()
    assert student.logits.grad is not None
    assert teacher.logits.grad is None
    assert teacher.hidden.grad is None


def test_distillation_is_fed_dats_without_settings() -> None:
    generator = torch.Generator().manual_seed(3)
    student, teacher = decoded(generator), decoded(generator)
    plain = losses.distillation(student, teacher).item()
    assert plain == losses.distillation(student, teacher, 2.0, "teacher_student", 1.0).item()
    for other in (
        (3.0, "teacher_student", 1.0),
        (2.0, "student_teacher", 1.0),
        (2.0, "teacher_student", 0.5),
    ):
        assert plain != pytest.approx(losses.distillation(student, teacher, *other).item())  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_distillation_matches_torch_per_report_token(direction: str) -> None:
    generator = torch.Generator().manual_seed(2)
    student, teacher = decoded(generator), decoded(generator)
    s, t = (F.log_softmax(d.logits / 2, -1) for d in (student, teacher))
    a, b = (s, t) if direction == "teacher_student" else (t, s)
    expected = 4 * F.kl_div(a, b, log_target=True, reduction="batchmean")
    expected += (1 - F.cosine_similarity(student.hidden, teacher.hidden)).mean()
    assert losses.distillation(student, teacher, 2.0, direction).item() == pytest.approx(
        expected.item(), rel=1e-5
    )  # type: ignore[arg-type]


def test_the_words_of_a_batch_are_all_tokens_but_the_padding() -> None:
    ids, targets = pad([[1, 2, 3], [4, 5, 6, 2, 1]])
    assert ids.shape == targets.shape == (2, 5)
    assert (targets[0, 3:] == IGNORED).all()
    batch = Batch(torch.zeros(2, 1, 8, 8), targets, ids, torch.zeros(2, 14, dtype=torch.long))
    assert batch.words.tolist() == [1, 2, 3, 4, 5, 6, 2, 1]
    out = decoded(torch.Generator().manual_seed(3))
    expected = -F.log_softmax(out.logits, -1)[range(8), batch.words].mean()
    assert losses.language(out, batch.words).item() == pytest.approx(expected.item())


def test_diagnosis_is_the_mean_over_conditions() -> None:
    logits = torch.zeros(2, 14, 4)
    assert losses.diagnosis(logits, torch.zeros(2, 14, dtype=torch.long)).item() == pytest.approx(math.log(4))
