# SPDX-License-Identifier: Apache-2.0
"""AdaLoRA's allocation: importance as PEFT computes it, one budget, one set of masks; VeRA's matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from medflare.models.adapters.adalora import AdaLoraAdapters, AdaLoraSettings
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.rank_allocation import budget, masks, normalised
from medflare.models.adapters.registry import attach
from medflare.models.adapters.seed_generated import seed_generated
from medflare.models.adapters.vera import VERA_A, VERA_B, VeraSettings
from medflare.models.backbone import load_backbone

IDS = torch.tensor([[1, 5, 6, 7, 8, 9]])
TARGETS = ("q_proj", "v_proj")


def test_the_budget_falls_from_all_ranks_to_the_target_and_stays() -> None:
    kept = [budget(n, 10, first=96, last=32, warm=0.1, final=0.3) for n in range(10)]
    assert kept[:2] == [96, 96]
    assert kept[-3:] == [32, 32, 32]
    assert kept == sorted(kept, reverse=True)
    middle = 1 - (4 - 1) / (6.3 - 1)
    assert kept[4] == int(32 + 64 * middle**3)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_the_last_of_two_rounds_or_more_has_the_target(rounds: int) -> None:
    assert budget(rounds - 1, rounds, 96, 32, warm=0.1, final=0.0) == (32 if rounds > 1 else 96)


def test_masks_keep_exactly_the_budget_and_break_ties_the_same_way_everywhere() -> None:
    scores = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor([2.0, 0.5, 2.0])}
    result = masks(scores, 2)
    assert {n: m.tolist() for n, m in result.items()} == {"a": [True, False, True], "b": [False, False]}
    again = masks(dict(reversed(scores.items())), 2)
    assert all(torch.equal(result[n], again[n]) for n in result)
    assert sum(int(m.sum()) for m in masks(scores, 4).values()) == 4


def test_a_site_weighs_by_its_examples_whatever_the_scale_of_its_loss() -> None:
    scores = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([4.0])}
    one = normalised(scores, 10)
    large = normalised({n: 1e6 * v for n, v in scores.items()}, 10)
    assert sum(float(v.sum()) for v in one.values()) == pytest.approx(10)
    assert all(torch.allclose(one[n], large[n]) for n in one)
    assert not normalised({"a": torch.zeros(2)}, 10)["a"].any()


def test_importance_and_mask_are_those_of_pefts_allocator_at_one_site(tiny_backbone: Path) -> None:
    from peft.tuners.adalora.layer import RankAllocator

    settings = AdaLoraSettings(rank=4, target_rank=2, targets=TARGETS)
    model = load_backbone(tiny_backbone, "fp32").model
    adapters: AdaLoraAdapters = attach(model, settings, (GENERIC,), 0)
    adapters.use((GENERIC,), train=(GENERIC,))
    theirs = RankAllocator(model, adapters.config, GENERIC)
    optimiser = torch.optim.AdamW(adapters.parameters(GENERIC), lr=0.01)
    for _ in range(4):
        optimiser.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
        adapters.importance.update(adapters._parameters)
        theirs.update_ipt(model)
    ours = adapters.importance.triplets(adapters.modules)
    total = sum(len(scores) for scores in ours.values())
    mine = masks(ours, total // 2)
    pattern = theirs.mask_to_budget(model, total // 2)
    for stem, mask in mine.items():
        key = next(name for name in pattern if stem.removeprefix("base_model.model.") in name)
        assert mask.tolist() == pattern[key]


def test_the_penalty_is_pefts_and_falls_with_orthogonality(tiny_backbone: Path) -> None:
    settings = AdaLoraSettings(rank=4, target_rank=2, targets=TARGETS)
    adapters = attach(load_backbone(tiny_backbone, "fp32").model, settings, (GENERIC,), 0)
    with torch.no_grad():
        plain = adapters.peft.base_model.model(input_ids=IDS, labels=IDS).loss
        theirs = adapters.peft(input_ids=IDS, labels=IDS).loss - plain
    assert float(adapters.penalty()) == pytest.approx(float(theirs), rel=1e-4)


def test_veras_matrices_are_pefts_own_draw_from_the_seed(tiny_backbone: Path) -> None:
    adapters = attach(
        load_backbone(tiny_backbone, "fp32").model, VeraSettings(rank=8, targets=TARGETS), (GENERIC,), 11
    )
    generated = adapters.not_communicated()
    made, held = seed_generated(generated["shapes"], generated["seed"]), adapters.file_tensors(GENERIC)
    assert all(torch.equal(made[name], held[name]) for name in (VERA_A, VERA_B))
    assert not set(adapters.state(GENERIC)) & {VERA_A, VERA_B}
    other = attach(
        load_backbone(tiny_backbone, "fp32").model, VeraSettings(rank=8, targets=TARGETS), (GENERIC,), 12
    )
    assert other.not_communicated()["sha256"] != generated["sha256"]
