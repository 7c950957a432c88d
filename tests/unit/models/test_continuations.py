# SPDX-License-Identifier: Apache-2.0
"""Continuations scored together are scored as each would be by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.adapters.prefix import PrefixSettings
from medflare.models.adapters.prompt import PromptSettings
from medflare.models.backbone import load_backbone
from medflare.models.continuations import log_likelihoods
from medflare.models.text_model import Sequenced, TextModel

ADAPTERS = {
    "lora": LoraSettings(rank=2, lora_alpha=8, targets=("q_proj", "v_proj")),
    "prefix": PrefixSettings(tokens=3),
    "prompt": PromptSettings(tokens=3),
}
PROMPTS = [
    "Question: Which drug treats gout?\nAnswer:",
    "Why?",
    "Question: A man of 60 with chest pain on exertion takes one tablet under the tongue. Which?\nAnswer:",
]
OPTIONS = [
    [" colchicine", " a", " acetylsalicylic acid in a low dose every morning"],
    [" because", " no"],
    [" nitroglycerin", " nitroglycerin spray", " salbutamol", " iron", " vitamin C"],
]


@pytest.fixture(params=sorted(ADAPTERS))
def model(request: pytest.FixtureRequest, tiny_backbone: Path) -> TextModel:
    made = TextModel(load_backbone(tiny_backbone, "fp32"), ADAPTERS[request.param], (GENERIC,), 0)
    state = made.adapters.state(GENERIC)
    torch.manual_seed(1)
    made.adapters.load(GENERIC, {n: v + 0.1 * torch.randn_like(v) for n, v in state.items()})
    made.adapters.use((GENERIC,))
    return made


def ids_of(model: TextModel) -> tuple[list[list[int]], list[list[list[int]]]]:
    return model.prompt_ids(PROMPTS), [model.answer_ids(options) for options in OPTIONS]


@torch.no_grad()
def one_by_one(model: TextModel) -> list[list[float]]:
    """Minus the training loss of every pair, each in a pass of its own."""
    prompts, options = ids_of(model)
    with model.evaluating():
        return [
            [-float(model.loss([Sequenced((*prompt, *tail), len(prompt))])[0]) for tail in several]
            for prompt, several in zip(prompts, options, strict=True)
        ]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_scores_are_those_of_each_pair_by_itself(model: TextModel, batch: int) -> None:
    found, expected = log_likelihoods(model, *ids_of(model), batch), one_by_one(model)
    assert [len(row) for row in found] == [3, 2, 5]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-4)


def test_the_same_question_gets_the_same_scores_again(model: TextModel) -> None:
    assert log_likelihoods(model, *ids_of(model), 2) == log_likelihoods(model, *ids_of(model), 2)


def test_nothing_asked_is_nothing_found(model: TextModel) -> None:
    assert log_likelihoods(model, [], [], 4) == []


def test_the_mode_of_the_model_is_as_before(model: TextModel) -> None:
    backbone: Any = model.backbone.model
    backbone.train()
    log_likelihoods(model, *ids_of(model), 2)
    assert backbone.training
