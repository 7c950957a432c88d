# SPDX-License-Identifier: Apache-2.0
"""A packed batch gives the loss and gradients of padded rows, and computes every beginning once."""

from __future__ import annotations

import pytest
import torch
from test_text_model import build, gradients, same
from torch import Tensor

from medflare.models.attention import ATTENTION
from medflare.models.packed_batch import pack
from medflare.models.text_model import Sequenced, TextModel

WINDOW = [1, 4, 5, 6]
ROWS = [
    Sequenced((*WINDOW, 7, 8, 2), 4),
    Sequenced((*WINDOW, 7, 9, 10, 2), 4),  # the answer begins like the row's before
    Sequenced((*WINDOW, 11, 12, 5, 2), 6),
    Sequenced((1, 9, 6, 5, 5, 4, 2), 5),
    Sequenced((*WINDOW, 7, 8, 2), 4),  # the first row once more
    Sequenced((3, 2), 1),
]


def plain(model: TextModel, rows: list[Sequenced]) -> tuple[float, int, list[Tensor]]:
    model.packs = False
    (loss, count), found = model.loss(rows), gradients(model, rows)
    model.packs = True
    return loss.item(), count, found


def test_every_beginning_is_computed_once_and_no_token_is_padding() -> None:
    packed = pack([row.ids for row in ROWS], [row.start for row in ROWS], "cpu")
    beginnings = {row.ids[:end] for row in ROWS for end in range(1, len(row.ids))}
    assert packed.ids.shape == (1, len(beginnings)) == packed.positions.shape
    along = [[int(packed.ids[0, node]) for node in path] for path in packed.rows.paths]
    assert all(path[: len(row.ids) - 1] == list(row.ids[:-1]) for path, row in zip(along, ROWS, strict=True))
    assert packed.targets.tolist() == [token for row in ROWS for token in row.ids[row.start :]]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_loss_and_gradients_are_those_of_padded_rows(family: str) -> None:
    model = build(family)
    assert model.packs
    loss, count, expected = plain(model, ROWS)
    total, tokens = model.loss(ROWS)
    assert (tokens, total.item()) == (count, pytest.approx(loss, abs=1e-5))
    assert same(gradients(model, ROWS), expected, atol=1e-6)


def test_no_row_sees_another() -> None:
    model = build()
    together = model.loss(ROWS)[0].item()
    assert together == pytest.approx(sum(model.loss([row])[0].item() for row in ROWS), abs=1e-5)


def test_gradient_checkpointing_computes_the_same_again() -> None:
    model = build()
    expected = gradients(model, ROWS)
    model.checkpoint_gradients()
    model.backbone.model.train()
    assert same(gradients(model, ROWS), expected)


def test_answers_are_written_as_before() -> None:
    model, reference = build(), build()
    reference.backbone.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        ids = torch.tensor([[1, 4, 5, 6, 7]])
        first, second = (one.backbone.model(input_ids=ids).logits for one in (model, reference))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("family", "dropout"), [("gpt2", 0.0), ("llama", 0.1)])
def test_dropout_and_other_architectures_pack_nothing(family: str, dropout: float) -> None:
    model = build(family, dropout)
    assert not model.packs
    own = model.backbone.model.config._attn_implementation == ATTENTION
    assert own == (family == "llama")
