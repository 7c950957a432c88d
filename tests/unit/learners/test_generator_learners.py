# SPDX-License-Identifier: Apache-2.0
"""The classical report generators at one site: their losses, and whether a draft follows its image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from method_sites import WRITER, Make

from medflare.core.conditions import Code
from medflare.core.plan import RoundPlan
from medflare.learners.promptmrg.logit_adjustment import LEAST, adjusted, frequencies, positive_f1, scaled
from medflare.learners.registry import get_method
from medflare.learners.wcl.losses import weighted_contrast
from medflare.models.padding import pad
from medflare.tasks.reports.evaluation import draft

SEEN = WRITER | {"encoder": {"name": "small", "image_size": 48}, "dropout": 0.0}
SINGLE_IMAGE: dict[str, dict[str, Any]] = {
    "transformer": {"model": SEEN},
    "r2gen": {"model": SEEN | {"memory": "relational"}},
    "wcl": {"model": SEEN | {"memory": "relational", "contrast_width": 8}},
    "dcl": {
        "model": {"encoder": SEEN["encoder"], "width": 64, "layers": 1, "dropout": 0.0},
        "optimiser": {"batch": 8, "lr": 2e-3, "weight_decay": 0.0, "schedule": "constant"},
        "contrast": False,
    },
    "r2gengpt": {"model": {"encoder": SEEN["encoder"] | {"token_grid": 2}}},
    "promptmrg": {"model": {"encoder": SEEN["encoder"] | {"token_grid": 2}, "retrieval_width": 8}},
}
"""Generator of reports of single images -> settings by which it learns a few reports by heart."""


@pytest.mark.parametrize("method", SINGLE_IMAGE)
def test_a_draft_follows_its_image(make_learner: Make, method: str) -> None:
    """Image-swap control: with another patient's image the report is unlikely, and the draft another."""
    learner: Any = make_learner(
        method,
        augment=False,
        max_report_tokens=8,
        **{"optimiser": {"batch": 8, "lr": 5e-3, "weight_decay": 0.0, "schedule": "constant"}}
        | SINGLE_IMAGE[method],
    )
    first = {tuple(learner.tokens[row]): row for row in learner.train_rows}  # one image for each wording
    learner.train_rows = rows = list(first.values())[:4]
    learner.order.size = len(rows)
    learner.fit(RoundPlan(round=0, rounds=1, steps=90))
    ids, targets = pad([learner.tokens[row] for row in rows])
    images, _, _ = learner._load(rows, torch.Generator())
    with torch.no_grad(), learner.model.evaluating():
        own, *swapped = (
            float(learner.model.report_loss(images.roll(k, 0), ids, targets)) for k in (0, 1, 2, 3)
        )
    assert own < min(swapped) - 0.2
    texts, _ = draft(learner.model, learner.samples, rows, learner.settings.decoding, 4)
    assert len(set(texts)) > 1


def slow_contrast(image: Any, report: Any, clusters: list[int], tau: float, hard: float) -> float:
    """WCL's loss pair by pair, in plain Python."""

    def cosine(a: list[float], b: list[float]) -> float:
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    n = len(image)
    score = [[math.exp(cosine(report[i], image[j]) / tau) for j in range(n)] for i in range(n)]
    weight = [[hard if clusters[i] == clusters[j] and i != j else 1.0 for j in range(n)] for i in range(n)]
    total = 0.0
    for i in range(n):
        rows = sum(weight[i][j] * score[i][j] for j in range(n))
        columns = sum(weight[j][i] * score[j][i] for j in range(n))
        total -= math.log(score[i][i] / rows) + math.log(score[i][i] / columns)
    return total / (2 * n)


def test_wcl_counts_negatives_of_the_same_cluster_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    image, report = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    clusters = [0, 1, 0, 0]
    for hard in (1.0, 2.0):
        fast = weighted_contrast(image, report, torch.tensor(clusters), 0.1, hard)
        assert float(fast) == pytest.approx(
            slow_contrast(image.tolist(), report.tolist(), clusters, 0.1, hard), rel=1e-10
        )
    assert weighted_contrast(image[:1], report[:1], torch.tensor([0]), 0.1, 2.0) == 0


def test_rare_positive_diagnoses_are_pushed_while_training() -> None:
    codes = torch.zeros(4, 14, dtype=torch.long)
    codes[:, 0], codes[0, 1], codes[:, 2] = int(Code.POSITIVE), int(Code.POSITIVE), int(Code.NEGATIVE)
    base = frequencies(codes)
    assert base[:3].tolist() == pytest.approx([1.0, 0.25, LEAST])
    logits = torch.zeros(1, 14, 4)
    change = adjusted(logits, base)[0]
    assert change[1].tolist() == pytest.approx([0, math.log(0.25), 0, 0])
    assert not change[0].any()
    predicted = codes.clone()
    predicted[0, 0] = int(Code.BLANK)  # three of four found: F1 = 6 / 7
    assert positive_f1(predicted, codes)[:3].tolist() == pytest.approx([6 / 7, 1.0, 0.0])
    assert torch.equal(scaled(torch.zeros(14)), torch.ones(14))


def test_promptmrg_retrieves_reports_of_other_patients_of_the_own_site_alone(make_learner: Make) -> None:
    learner: Any = make_learner("promptmrg")
    bank, rows = learner.model.bank, learner.train_rows
    assert len(bank.keys) == len(bank.values) == len(rows)
    images, _, _ = learner._load(rows[:4], torch.Generator())
    own = learner.patients[rows[:4]]
    similar = bank.describe(images) @ bank.keys.T
    similar[own[:, None] == bank.patients[None]] = -9
    expected = bank.values[similar.topk(3, 1).indices]
    assert torch.equal(bank.find(images, own), expected)
    assert not torch.equal(bank.find(images), expected)
    sent = torch.cat(
        [value.flatten() for value in learner.fit(RoundPlan(round=0, rounds=1, steps=1)).delta.values()]
    )
    assert not bool(torch.isin(bank.values.flatten()[:50], sent).any())
    learner.model.bank = None  # an unseen site: nothing to retrieve, and still a report
    assert len(draft(learner.model, learner.samples, rows[:2], learner.settings.decoding, 2)[0]) == 2


def test_where_validation_images_are_missed_promptmrg_adapts_its_adjustment(make_learner: Make) -> None:
    plan = RoundPlan(round=0, rounds=2, steps=1)
    for choice, changes in (("adaptive", True), ("frequency", False)):
        learner: Any = make_learner("promptmrg", logit_adjustment=choice)
        before = learner.base.clone()
        learner.fit(plan)
        assert torch.equal(learner.base, before) != changes


def test_the_released_temperature_of_wcl_has_no_effect_and_can_be_chosen() -> None:
    wcl = get_method("wcl")
    assert wcl.resolve({}).temperature == 0.1
    assert wcl.resolve({"variant": "released", "contrast_temperature": 0.3}).temperature == 1.0


def test_the_paper_presets_are_r2gens_training(make_learner: Make) -> None:
    for method in ("transformer", "r2gen", "wcl"):
        paper = get_method(method).resolve({"preset": "paper"})
        assert (paper.model.width, paper.model.layers, paper.model.attention_heads) == (512, 3, 8)
        assert (paper.optimiser.amsgrad, paper.optimiser.lr, paper.optimiser.batch) == (True, 1e-4, 16)
        assert paper.optimiser.lr * paper.optimiser.encoder_lr_scale == 5e-5
        assert (paper.decoding.beams, paper.max_report_tokens) == (3, 100)
    learner: Any = make_learner("r2gen", optimiser={"amsgrad": True, "encoder_lr_scale": 0.5, "lr": 1e-3})
    optimiser = learner.round_optimiser()
    assert type(optimiser) is torch.optim.Adam
    assert [group["amsgrad"] for group in optimiser.param_groups] == [True, True]
    assert [group["base_lr"] for group in optimiser.param_groups] == [1e-3, 5e-4]
    assert learner.round_optimiser() is optimiser  # BL-1: the moments outlive a round


def test_a_frozen_image_encoder_stays_as_it_is(make_learner: Make) -> None:
    learner: Any = make_learner("transformer", optimiser={"encoder_lr_scale": 0.0, "lr": 1e-3})
    moved = learner.fit(RoundPlan(round=0, rounds=1, steps=1)).delta
    assert not any(value.any() for name, value in moved.items() if name.startswith("encoder."))
    assert any(value.any() for name, value in moved.items() if name.startswith("transformer."))
