# SPDX-License-Identifier: Apache-2.0
"""How likely a text model holds each of several continuations of a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from medflare.models.backbone import autocast
from medflare.models.report_generator import scaled_logits
from medflare.models.text_model import TextModel

Ids = Sequence[int]


@torch.no_grad()
def log_likelihoods(
    model: TextModel, prompts: Sequence[Ids], continuations: Sequence[Sequence[Ids]], batch: int
) -> list[list[float]]:
    """Σ log p of the tokens of every continuation of every prompt, with the adapter in use.

    A prompt is computed once for all its continuations; prompts of similar length share a batch. Found is
    what a computation of each pair by itself finds, up to the rounding of the backbone's precision.

    Args:
        prompts: token ids, at least one each; continuations: of each prompt some, at least one token each.
        batch: prompts at once.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: list[list[float]] = [[] for _ in prompts]
    with model.evaluating():
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            sums = _of_batch(model, [prompts[i] for i in rows], [continuations[i] for i in rows])
            for i, values in zip(rows, sums, strict=True):
                found[i] = values
    return found


def _of_batch(model: TextModel, prompts: list[Ids], continuations: list[Sequence[Ids]]) -> list[list[float]]:
    """`log_likelihoods` of prompts that are computed together, as many continuations at once as prompts."""
    ids, mask = _padded(prompts, model.padding, model.device, left=True)
    last, cache = _decode(model, ids, mask, (mask.cumsum(1) - 1).clamp(min=0), None)
    pairs = [(row, place) for row, several in enumerate(continuations) for place in range(len(several))]
    pairs.sort(key=lambda pair: len(continuations[pair[0]][pair[1]]))
    found = [[0.0] * len(several) for several in continuations]
    for start in range(0, len(pairs), len(prompts)):
        part = pairs[start : start + len(prompts)]
        rows = torch.tensor([row for row, _ in part], device=model.device)
        tails = [continuations[row][place] for row, place in part]
        sums = _continued(model, last[rows, -1:], mask[rows], _of_rows(cache, rows), tails)
        for (row, place), value in zip(part, sums, strict=True):
            found[row][place] = value
    return found


def _of_rows(cache: Any, rows: Tensor) -> Any:
    """Keys and values of these rows, which may repeat."""
    chosen = copy.deepcopy(cache)
    chosen.batch_select_indices(rows)
    return chosen


def _continued(model: TextModel, last: Tensor, mask: Tensor, cache: Any, tails: list[Ids]) -> list[float]:
    """Σ log p of each tail.

    Args:
        last: (N, 1, hidden) at the end of each prompt; mask: (N, T) of the prompts; cache: of the prompts.
    """
    ids, kept = _padded(tails, model.padding, model.device, left=False)
    hidden = last
    if ids.shape[1] > 1:
        positions = mask.sum(1)[:, None] + torch.arange(ids.shape[1] - 1, device=model.device)
        whole = torch.cat([mask, kept[:, :-1]], 1)
        hidden = torch.cat([last, _decode(model, ids[:, :-1], whole, positions, cache)[0]], 1)
    sums: list[float] = _log_probabilities(model, hidden, ids, kept.bool()).tolist()
    return sums


def _decode(model: TextModel, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """(N, T, hidden) of the last layer, and the keys and values of all tokens so far."""
    with autocast(model.backbone.precision, str(model.device)):
        out = model.backbone.model.get_decoder()(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
    return out.last_hidden_state, out.past_key_values


def _log_probabilities(model: TextModel, hidden: Tensor, tails: Tensor, kept: Tensor) -> Tensor:
    """(N,) sums over the tokens that are no padding; logits are computed for these alone."""
    backbone = model.backbone.model
    with autocast(model.backbone.precision, str(model.device)):
        logits = backbone.get_output_embeddings()(hidden[kept]).float()
    every = scaled_logits(logits, backbone.config).log_softmax(-1)
    own = every.gather(1, tails[kept][:, None])[:, 0]
    return torch.zeros(kept.shape, device=own.device).masked_scatter(kept, own).sum(1)


def _padded(rows: Sequence[Ids], padding: int, device: torch.device, left: bool) -> tuple[Tensor, Tensor]:
    """Ids (N, T) and the mask of what is no padding."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row)
        mask[i, place] = 1
    return ids.to(device), mask.to(device)
