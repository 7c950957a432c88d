# SPDX-License-Identifier: Apache-2.0
"""Gradients of patients against one example at a time, clipping, and the networks that are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError, UpdateError
from medflare.differential_privacy.patient_gradients import hooked
from medflare.models.adapters.base import PeftMethod
from medflare.models.adapters.registry import PEFT_METHODS

MakeLearner = Callable[..., Any]


def text_loss(learner: Any) -> Callable[[Sequence[int]], Tensor]:
    learner.adapter.use(train=True)
    learner.model.backbone.model.train()
    return lambda rows: learner.model.loss([learner.train_rows[i] for i in rows], alone=True)[0]


def one_by_one(
    parameters: list[nn.Parameter], loss: Callable[[Sequence[int]], Tensor], rows: list[int]
) -> Any:
    """The slow, obviously right way: a backward pass for each row of a patient."""
    total = [torch.zeros_like(p) for p in parameters]
    for row in rows:
        for summed, gradient in zip(total, torch.autograd.grad(loss([row]), parameters), strict=True):
            summed += gradient
    return total


LORA = {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "down_proj"], "dropout": 0.0}


def check_exact(learner: Any, chunk: int) -> None:
    """Compare patients' gradients with the sums of their rows', one backward pass for each."""
    with torch.no_grad():  # with B = 0 the gradient of A would be 0, and every test of it passed
        for parameter in learner.adapter.live().values():
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    loss, patients = text_loss(learner), [[0, 4, 2], [1], [5, 3]]
    with hooked(learner.model.adapters.peft, loss, chunk) as gradients:
        found = [[part.clone() for part in one] for one in gradients.of_patients(patients)]
        parameters = gradients.parameters
    for own, gradient in zip(patients, found, strict=True):
        expected = one_by_one(parameters, loss, own)
        assert sum(part.norm() for part in expected) > 0.05
        for part, right in zip(gradient, expected, strict=True):
            assert (part - right).norm() <= 2e-6 * right.norm() + 1e-6


@pytest.mark.parametrize("sharing", ["freeze_a", "factors"])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_gradients_of_patients_equal_one_backward_pass_for_each_row(
    summariser: MakeLearner, sharing: str, chunk: int
) -> None:
    check_exact(summariser(sharing=sharing, lora=LORA), chunk)


def test_a_patient_weighs_at_most_the_norm_however_many_records_it_has(summariser: MakeLearner) -> None:
    learner = summariser(lora={"rank": 2, "lora_alpha": 8, "targets": ["q_proj"], "dropout": 0.0})
    loss = text_loss(learner)
    with hooked(learner.model.adapters.peft, loss, 4) as gradients:
        many = gradients.clipped_sum([[0, 1, 2, 3, 4, 5]], 0.01)
        nobody = gradients.clipped_sum([], 0.01)
        far = gradients.clipped_sum([[0]], 1e6)
        (whole,) = ([part.clone() for part in one] for one in gradients.of_patients([[0]]))
    norm = torch.stack([part.norm() for part in many.gradients]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-4)
    assert (many.patients, many.clipped, far.clipped, nobody.patients) == (1, 1, 0, 0)
    assert all(torch.equal(a, b) for a, b in zip(far.gradients, whole, strict=True))
    assert all(not part.any() for part in nobody.gradients)


def test_rows_that_share_their_computation_are_refused(summariser: MakeLearner) -> None:
    """Packed rows (models.packed_batch) are one row to a hook: no example has a gradient of its own."""
    learner = summariser(lora=LORA)
    text_loss(learner)
    assert learner.model.packs
    with (
        pytest.raises(ConfigError, match="in a way that Opacus's hooks do not see"),
        hooked(learner.model.adapters.peft, lambda rows: packed(learner, rows), 2) as gradients,
    ):
        gradients.clipped_sum([[0, 1]], 1.0)


def packed(learner: Any, rows: Sequence[int]) -> Tensor:
    loss: Tensor = learner.model.loss([learner.train_rows[i] for i in rows])[0]
    return loss


def test_hooks_leave_the_network_as_it_was(summariser: MakeLearner) -> None:
    learner = summariser()
    loss, module = text_loss(learner), learner.model.adapters.peft
    with hooked(module, loss, 4) as gradients:
        gradients.clipped_sum([[0]], 1.0)
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())
    assert all(p.grad is None and "grad_sample" not in vars(p) for p in module.parameters())
    with hooked(module, loss, 4):  # and once more, in the next round
        pass


class Normalised(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), norm

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.linear(x))
        return found


class Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.prompts


class Twice(nn.Module):
    """Its weight is used by its layer, and once more beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x) + nn.functional.linear(x, self.linear.weight)
        return found


def frozen(norm: nn.Module) -> nn.Module:
    return norm.requires_grad_(False).eval()


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Normalised(nn.BatchNorm1d(4)), "norm: BatchNorm normalises with other examples"),
        (nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2)), "1: MultiheadAttention"),
        (Prompted(), r"Prompted has parameters \(prompts\)"),
        (Twice(), "'linear.weight' is used by the network in a way that Opacus's hooks do not see"),
        (frozen(nn.Linear(4, 4)), "nothing of the network learns"),
    ],
    ids=["BatchNorm", "MultiheadAttention", "own parameter", "used beside its layer", "frozen"],
)
def test_networks_that_couple_examples_or_hide_them_are_refused(network: nn.Module, reason: str) -> None:
    data = torch.randn(3, 4)
    with (
        pytest.raises(ConfigError, match=reason),
        hooked(network, lambda rows: network(data[list(rows)]).sum(), 2) as gradients,
    ):
        gradients.clipped_sum([[0, 1], [2]], 1.0)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), frozen(nn.BatchNorm1d(4))], ids=["GroupNorm", "frozen"])
def test_normalisation_within_an_example_is_not(norm: nn.Module) -> None:
    network, data = Normalised(norm), torch.randn(3, 4)
    with hooked(network, lambda rows: network(data[list(rows)]).square().sum(), 2) as gradients:
        assert gradients.clipped_sum([[0, 1], [2]], 1.0).patients == 2


def test_gradient_checkpointing_is_refused_before_a_step(summariser: MakeLearner) -> None:
    learner = summariser()
    loss = text_loss(learner)
    learner.model.checkpoint_gradients()
    with (
        pytest.raises(ConfigError, match="gradient checkpointing runs a layer twice"),
        hooked(learner.model.adapters.peft, loss, 2),
    ):
        pass
    with pytest.raises(ConfigError, match=r"set optimiser\.gradient_checkpointing to false"):
        summariser(optimiser={"gradient_checkpointing": True})


@pytest.mark.parametrize(("method", "row"), PEFT_METHODS.items(), ids=list(PEFT_METHODS))
def test_every_adapter_has_exact_gradients_of_patients_or_is_refused(
    summariser: MakeLearner, method: str, row: PeftMethod
) -> None:
    settings: dict[str, Any] = {"sharing": "factors", "peft": {"method": method}, "lora": LORA}
    if row.per_example:
        check_exact(summariser(**settings), 2)
        return
    with pytest.raises(ConfigError, match=f"'{method}' has no gradients of single examples; those of lora"):
        summariser(**settings)


def test_a_gradient_that_is_not_finite_stops_the_round() -> None:
    network = nn.Linear(2, 1)
    with (
        pytest.raises(UpdateError, match="gradient is not finite"),
        hooked(network, lambda rows: network(torch.full((len(rows), 2), float("inf"))).sum(), 2) as gradients,
    ):
        gradients.clipped_sum([[0]], 1.0)
