# SPDX-License-Identifier: Apache-2.0
"""What hostile sites send in the attack study is what the study says they send."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from medflare.core.update import Update
from method_comparison.tasks import hostile_updates

SITES = ("a", "b", "c", "d", "e")
HOSTILE = ("b", "d")


@pytest.fixture(scope="module")
def attacks() -> ModuleType:
    return hostile_updates


def honest() -> dict[str, Update]:
    generator = torch.Generator().manual_seed(0)
    return {
        site: Update(
            delta={"w": torch.randn(3, 4, generator=generator), "b": torch.randn(4, generator=generator)},
            examples=10 + k,
            metrics={"val_loss": 1.0 + k},
        )
        for k, site in enumerate(SITES)
    }


def sent(attacks: ModuleType, name: str, factor: float = 1.0) -> dict[str, Update]:
    return attacks.sent(name, honest(), HOSTILE, factor, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "name", ["sign_flip", "times_10", "times_minus_10", "gaussian", "label_shuffled", "colluding"]
)
def test_honest_updates_arrive_as_they_are_and_examples_stay_true(attacks: ModuleType, name: str) -> None:
    result = sent(attacks, name)
    assert list(result) == list(SITES)
    for site, update in honest().items():
        assert result[site].examples == update.examples
        if site not in HOSTILE:
            assert all(torch.equal(result[site].delta[n], value) for n, value in update.delta.items())
            assert (result[site].metrics, result[site].factor) == (update.metrics, 1.0)


@pytest.mark.parametrize(("name", "factor"), [("sign_flip", -1), ("times_10", 10), ("times_minus_10", -10)])
def test_a_scaled_update_is_the_own_one_times_a_factor(attacks: ModuleType, name: str, factor: int) -> None:
    assert torch.equal(sent(attacks, name)["b"].delta["w"], factor * honest()["b"].delta["w"])


def test_noise_is_ten_times_as_long_as_the_own_update_and_differs_by_site(attacks: ModuleType) -> None:
    def flat(update: Update) -> torch.Tensor:
        return torch.cat([value.reshape(-1) for value in update.delta.values()])

    result = sent(attacks, "gaussian")
    for site in HOSTILE:
        assert flat(result[site]).norm() == pytest.approx(10 * flat(honest()[site]).norm().item(), rel=1e-5)
    assert not torch.equal(flat(result["b"]), flat(result["d"]))


def test_colluding_sites_all_send_the_mean_less_a_few_deviations(attacks: ModuleType) -> None:
    result = sent(attacks, "colluding")
    rows = torch.stack([honest()[site].delta["w"] for site in SITES if site not in HOSTILE])
    assert torch.allclose(result["b"].delta["w"], rows.mean(0) - 1.5 * rows.std(0))
    assert torch.equal(result["b"].delta["w"], result["d"].delta["w"])


def test_the_hostile_claim_the_best_loss_and_the_largest_factor(attacks: ModuleType) -> None:
    result = sent(attacks, "sign_flip", factor=7.0)
    assert {result[site].metrics["val_loss"] for site in HOSTILE} == {0.5}
    assert {result[site].factor for site in HOSTILE} == {7.0}


def test_without_hostile_sites_nothing_changes(attacks: ModuleType) -> None:
    given = honest()
    assert attacks.sent("none", given, (), 1.0, torch.Generator()) == given
