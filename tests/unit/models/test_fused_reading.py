# SPDX-License-Identifier: Apache-2.0
"""Reading without padding yields states, keys and values of transformers, whatever is padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_text_model import build
from torch import Tensor

from medflare.models.text_backbone import TextBackbone
from medflare.models.text_model import TextModel

PASSES = (
    # rows of different length, as prompts are read
    torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]),
    # drafts: one row has none
    torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]),
    torch.tensor([[1], [1], [1]]),
)
VAIN = (0, 6)
"""A token of the second pass that the third does not see: it was drafted in vain."""


def read_all(model: TextModel, read: Any) -> tuple[list[Tensor], Any]:
    """Return the states of every pass where there are tokens, and the cache."""
    generator = torch.Generator().manual_seed(3)
    seen, cache, states = torch.zeros(3, 0, dtype=torch.long), None, []
    for new in PASSES:
        ids = torch.randint(3, 30, new.shape, generator=generator)
        positions = seen.sum(1, keepdim=True) + (new.cumsum(1) - 1).clamp(min=0)
        seen = torch.cat([seen, new], 1)
        hidden, cache = read(ids, seen, positions, cache)
        states.append(hidden[new.bool()])
        if seen.shape[1] == 8:
            seen[VAIN] = 0
    return states, cache


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("few", [0, 32])
@torch.no_grad()
def test_states_and_cache_are_those_of_transformers(
    family: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medflare.models.attention.FEW", few)
    model = build(family)
    with model.reading():
        assert model._reader is not None
        states, cache = read_all(model, model.read)
        expected, plain = read_all(model, lambda *given: TextBackbone.read(model, *given))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(states, expected, strict=True))
    filled = torch.cat(PASSES, 1).bool()
    for layer, other in zip(cache.layers, plain.layers, strict=True):
        for name in ("keys", "values"):
            mine, theirs = (getattr(one, name).transpose(1, 2)[filled] for one in (layer, other))
            assert torch.allclose(mine, theirs, atol=1e-5)


ROWS = ([4, 5, 6, 7, 8], [4, 5, 6, 9], [4, 5], [4, 5, 6, 7, 8], [4, 11, 12])


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@torch.no_grad()
def test_rows_are_read_along_what_they_share_and_go_on(family: str) -> None:
    model = build(family)
    with model.reading():
        assert model._reader is not None
        assert model._reader.holds(ROWS)
        states, mask, cache = model.read_rows(ROWS)
        expected, other_mask, other = TextBackbone.read_rows(model, ROWS)
        new = torch.tensor([[13], [14], [15], [16], [17]])
        seen = torch.cat([mask, torch.ones_like(new)], 1)
        after, _ = model.read(new, seen, mask.sum(1, keepdim=True), cache)
        expected_after, _ = model.read(new, seen, mask.sum(1, keepdim=True), other)
    assert torch.equal(mask, other_mask)
    kept = mask.bool()
    kept[:, 0] = False  # what all begin with
    assert torch.allclose(states[kept], expected[kept], atol=1e-5)
    assert torch.allclose(after, expected_after, atol=1e-5)


@torch.no_grad()
def test_rows_whose_scores_are_too_many_are_read_by_transformers_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build()
    with model.reading():
        states, mask, _ = model.read_rows(ROWS)
        monkeypatch.setattr("medflare.models.fused_reading.MOST_SCORES", 1)
        expected, other_mask, _ = model.read_rows(ROWS)
    assert torch.equal(mask, other_mask)
    assert torch.allclose(states[:, 1:][mask[:, 1:] == 1], expected[:, 1:][mask[:, 1:] == 1], atol=1e-5)


@torch.no_grad()
def test_what_is_read_outside_has_the_adapters_beside_the_weights() -> None:
    model = build()
    before = read_all(model, model.read)[0]
    with pytest.raises(KeyError), model.reading():
        raise KeyError("inside")
    assert model._reader is None
    assert all(torch.equal(a, b) for a, b in zip(before, read_all(model, model.read)[0], strict=True))


def test_another_architecture_is_left_to_transformers() -> None:
    model = build("gpt2")
    with model.reading():
        assert model._reader is None
