# SPDX-License-Identifier: Apache-2.0
"""FedMRG and FedViT-GPT2 under differential privacy: exact gradients of patients, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.data.images import centre
from medflare.differential_privacy.patient_gradients import hooked
from medflare.learners.fedmrg import learner as fedmrg
from medflare.learners.fedmrg.private_training import private_module, summed_loss
from medflare.learners.vit_gpt2 import learner as vit_gpt2
from site_builders import site_config

DP = {"noise_multiplier": 1.0, "sample_rate": 0.5, "delta": 0.01}
PLAN = RoundPlan(round=0, rounds=2, steps=2)
ENCODER = {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2}
FEDMRG: dict[str, Any] = {
    "variant": "private",
    "model": {"encoder": ENCODER, "lora": {"rank": 2, "lora_alpha": 8}},
    "batch": 3,
    "rotation": 0,
    "lr": 1e-3,
    "max_report_tokens": 20,
    "decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0},
    "dp": DP,
}
PART = {"layers": 1, "width": 32, "attention_heads": 2}
VIT: dict[str, Any] = {
    "variant": "private",
    "model": {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}, "dropout": 0.0},
    "optimiser": {"batch": 3, "lr": 1e-3},
    "max_report_tokens": 20,
    "decoding": {"beams": 1, "max_new_tokens": 8},
    "augment": False,
    "dp": DP,
}
Make = Callable[..., Any]


@pytest.fixture
def make_fedmrg(small_hospital: Path, tiny_backbone: Path) -> Make:
    def made(**settings: Any) -> fedmrg.FedMRGLearner:
        learner = fedmrg.build(FEDMRG | settings, site_config("manifest", small_hospital, tiny_backbone), 0)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


@pytest.fixture
def make_vit(small_hospital: Path) -> Make:
    def made(**settings: Any) -> vit_gpt2.ViTGPT2Learner:
        learner = vit_gpt2.build(VIT | settings, site_config("manifest", small_hospital, None), 0)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


def check_exact(module: nn.Module, loss: Callable[[Sequence[int]], Tensor], rows: list[int]) -> None:
    """Compare patients' gradients with sums of one backward pass for each of their images."""
    patients = [[rows[0], rows[4], rows[2]], [rows[1]], [rows[5], rows[3]]]
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    with hooked(module, loss, 4) as gradients:
        found = [[part.clone() for part in one] for one in gradients.of_patients(patients)]
    for own, gradient in zip(patients, found, strict=True):
        total = [torch.zeros_like(p) for _, p in named]
        for row in own:
            module.zero_grad()
            loss([row]).backward()  # type: ignore[no-untyped-call]
            for summed, (_, parameter) in zip(total, named, strict=True):
                summed += 0 if parameter.grad is None else parameter.grad
        for (name, _), part, right in zip(named, gradient, total, strict=True):
            assert (part - right).norm() <= 5e-6 * right.norm() + 1e-6, name
        assert sum(float(part.norm()) for part in total) > 0.1


def test_fedmrg_has_exact_gradients_of_patients_in_every_part(make_fedmrg: Make) -> None:
    learner = make_fedmrg()
    with torch.no_grad():  # with B = 0 the gradient of A would be 0
        for parameter in learner.model.adapters.parameters("generic"):
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    module, generator = private_module(learner.model, learner.settings), torch.Generator()
    loss = summed_loss(learner.training, lambda rows: centred(learner, rows), generator)
    check_exact(module, loss, learner.train_rows)
    learned = {name.split(".")[0] for name, p in module.named_parameters() if p.requires_grad}
    assert learned == {"encoder", "projection", "head", "prompts", "adapter"}


def centred(learner: fedmrg.FedMRGLearner, rows: list[int]) -> Any:
    """A batch whose images are cut at the same place each time."""
    batch = learner._load(rows, torch.Generator())
    batch.views = centre(learner.samples.images(rows), 48)
    return batch


def test_vit_gpt2_has_exact_gradients_of_patients_in_every_block(make_vit: Make) -> None:
    learner = make_vit()
    learner.model.train()
    loss = partial(learner.summed_loss, generator=torch.Generator())
    check_exact(learner.model, loss, learner.train_rows)
    frozen = {n for n, p in learner.model.network.named_parameters() if not p.requires_grad}
    assert all("embeddings" in n or "wte" in n or "wpe" in n for n in frozen)
    assert len(frozen) == 6


@pytest.mark.parametrize("method", ["fedmrg", "vit"])
def test_a_private_round_moves_what_learns_and_tells_no_loss(
    method: str, make_fedmrg: Make, make_vit: Make
) -> None:
    learner = {"fedmrg": make_fedmrg, "vit": make_vit}[method]()
    update = learner.fit(PLAN)
    assert set(update.metrics) == {"steps", "seconds"}
    assert not update.sums
    patients = learner.patient_privacy.patients
    assert update.examples == len(patients) < len(learner.train_rows) + 1
    frozen = {n for n, delta in update.delta.items() if not delta.any()}
    tables = {n for n in update.delta if any(t in n for t in ("embeddings", "wte", "wpe"))}
    assert frozen == (tables if method == "vit" else set())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"variant": "fedmrg"}, "dp: contrastive compares the images of a batch"),
        ({"variant": "fedmrg", "dual": False}, "dp: contrastive compares the images of a batch"),
        (
            {"variant": "without_contrastive"},
            "dp: the specialised adapter learns from the same patients without noise",
        ),
        (
            {"variant": "fedmrg", "bank": "prototypes"},
            r"dp: settings\.bank 'prototypes' sends sums that have no noise",
        ),
        (
            {"model": {"encoder": ENCODER, "peft": {"method": "vera"}}},
            "dp: an adapter of method 'vera' has no gradients of single examples",
        ),
        (
            {"model": {"encoder": ENCODER | {"name": "resnet18"}}},
            "BatchNorm normalises with other examples of a batch",
        ),
    ],
    ids=["paper's form", "contrast", "specialised adapter", "bank", "adapter", "BatchNorm"],
)
def test_fedmrg_in_a_form_that_couples_patients_is_refused(
    make_fedmrg: Make, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_fedmrg(**settings)


def test_the_private_form_sends_no_features_whatever_bank_the_job_has(make_fedmrg: Make) -> None:
    learner = make_fedmrg(bank="prototypes")
    assert learner.sums_spec(2) == {} == learner.fit(PLAN).sums


def test_a_frozen_encoder_with_batch_norm_is_not_refused(make_fedmrg: Make) -> None:
    learner = make_fedmrg(model={"encoder": ENCODER | {"name": "resnet18"}}, encoder_lr_scale=0)
    update = learner.fit(PLAN)
    assert not any(d.any() for n, d in update.delta.items() if n.startswith("encoder."))


def test_vit_gpt2_whose_tables_learn_is_refused(make_vit: Make) -> None:
    with pytest.raises(ConfigError, match="dp: tables of words and positions are used beside their layers"):
        make_vit(variant="fedvit_gpt2")


@pytest.mark.parametrize("method", ["fedmrg", "vit"])
def test_augmentation_comes_from_no_seed_that_is_known(
    method: str, make_fedmrg: Make, make_vit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = set()
    for _ in range(2):
        learner = {"fedmrg": make_fedmrg, "vit": make_vit}[method](dp=DP | {"sample_rate": 1.0})

        def load(rows: list[int], generator: torch.Generator, whole: Any = learner._load) -> Any:
            seeds.add(generator.initial_seed())
            return whole(rows, generator)

        monkeypatch.setattr(learner, "_load", load)
        learner.fit(RoundPlan(round=0, rounds=2, steps=1))
    assert len(seeds) == 2
