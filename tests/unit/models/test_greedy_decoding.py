# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding writes what `generate` writes, whatever is drafted, shared or merged on the way."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from test_text_model import FAMILIES, PROJECTIONS, QUESTIONS, SHAPE, build
from transformers import MistralConfig, MistralForCausalLM

from medflare.models.adapters.base import GENERIC
from medflare.models.greedy_decoding import NoGuide, write_greedily
from medflare.models.text_model import TextModel

BUDGETS = [9, 3, 12, 7]


class Drafter:
    """Drafts an answer that may be wrong anywhere; states are how many tokens were written."""

    start = 0

    def __init__(self, expected: Sequence[int], allowed: Collection[int] | None = None) -> None:
        self.expected, self.names = list(expected), allowed

    def draft(self, state: int, first: bool) -> list[int]:
        return self.expected[state:]

    def allowed(self, state: int) -> Collection[int] | None:
        return self.names

    def after(self, state: int, token: int) -> int:
        return state + 1

    def ending(self, state: int) -> list[int]:
        return []


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> TextModel:
    return build(request.param)


def written(model: TextModel, ids: list[list[int]], *given: Any) -> list[list[int]]:
    with model.reading():
        return write_greedily(model, ids, *given)


def reference(model: TextModel) -> list[list[int]]:
    """Return what transformers' own `generate` writes to each prompt alone, up to its end mark."""
    rows = []
    for ids, budget in zip(model.prompt_ids(QUESTIONS), BUDGETS, strict=True):
        new = model.generate_ids([ids], budget)[0]
        rows.append(new[: new.index(model.end) + 1] if model.end in new else new)
    return rows


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_tokens_are_those_of_generate(model: TextModel, batch: int) -> None:
    assert written(model, model.prompt_ids(QUESTIONS), BUDGETS, batch) == reference(model)


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_a_draft_changes_no_token(model: TextModel, wrong: float) -> None:
    chance = random.Random(0)
    expected = reference(model)
    guides = [Drafter([t if chance.random() >= wrong else 5 for t in row]) for row in expected]
    assert written(model, model.prompt_ids(QUESTIONS), BUDGETS, 4, guides) == expected


@pytest.mark.parametrize(("family", "passes"), [("llama", 0), ("gpt2", 2)])
def test_a_right_draft_is_read_with_its_prompt(
    family: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama's rows are read along what they share; elsewhere the begin mark is a pass of its own."""
    model = build(family)
    expected, shapes = reference(model), []
    read = model.read
    monkeypatch.setattr(model, "read", lambda *given: (shapes.append(given[0].shape), read(*given))[1])
    guides = [Drafter(row) for row in expected]
    assert written(model, model.prompt_ids(QUESTIONS), BUDGETS, 4, guides) == expected
    assert len(shapes) == passes


def test_layers_with_a_sliding_window_see_what_they_see_in_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPE | {"sliding_window": 6, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    special = FAMILIES["llama"][2]
    row = (lambda: MistralForCausalLM(MistralConfig(**shape)), PROJECTIONS, special)
    monkeypatch.setitem(FAMILIES, "mistral", row)
    model = build("mistral")
    expected = reference(model)
    for wrong in (0.0, 0.4):
        chance = random.Random(0)
        guides = [Drafter([t if chance.random() >= wrong else 5 for t in row]) for row in expected]
        assert written(model, model.prompt_ids(QUESTIONS), BUDGETS, 4, guides) == expected


def test_only_allowed_tokens_are_written_and_the_best_of_them() -> None:
    model = build()
    ids = model.prompt_ids(QUESTIONS)
    names = [4, 9, 11]
    guides = [Drafter([4, 9], names) for _ in ids]
    for row, new in zip(ids, written(model, ids, [6] * 4, 4, guides), strict=True):
        for k, token in enumerate(new):
            with torch.no_grad():
                logits = model.backbone.model(input_ids=torch.tensor([[*row, *new[:k]]])).logits[0, -1]
            assert token == names[int(logits[names].argmax())]


def test_merged_weights_compute_the_adapter_and_are_put_back_bit_for_bit(model: TextModel) -> None:
    before = {name: p.detach().clone() for name, p in model.backbone.model.named_parameters()}
    ids = torch.tensor([model.prompt_ids(QUESTIONS)[1]])
    with torch.no_grad(), model.evaluating():
        beside = model.backbone.model(input_ids=ids).logits
        with model.adapters.merged():
            merged = model.backbone.model(input_ids=ids).logits
            assert any(not torch.equal(p, before[n]) for n, p in model.backbone.model.named_parameters())
        after = model.backbone.model(input_ids=ids).logits
    assert torch.allclose(merged, beside, atol=1e-5)
    assert torch.equal(after, beside)
    assert all(torch.equal(p, before[name]) for name, p in model.backbone.model.named_parameters())


def test_an_error_while_merged_leaves_the_weights_as_they_were() -> None:
    model = build()
    before = {name: p.detach().clone() for name, p in model.backbone.model.named_parameters()}
    with pytest.raises(KeyError), model.adapters.merged():
        raise KeyError("inside")
    assert all(torch.equal(p, before[name]) for name, p in model.backbone.model.named_parameters())
    assert not any(layer.merged_adapters for layer in model.adapters._layers)


def test_an_adapter_that_is_not_in_use_is_not_merged() -> None:
    model = build()
    ids = torch.tensor([model.prompt_ids(QUESTIONS)[1]])
    model.adapters.use(())
    with torch.no_grad(), model.evaluating():
        plain = model.backbone.model(input_ids=ids).logits
        with model.adapters.merged():
            assert torch.equal(model.backbone.model(input_ids=ids).logits, plain)
    model.adapters.use((GENERIC,))


def test_no_guide_knows_nothing() -> None:
    guide = NoGuide()
    assert (guide.draft(None, True), guide.allowed(None), guide.ending(None)) == ([], None, [])
