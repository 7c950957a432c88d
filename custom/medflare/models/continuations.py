# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods that a text model gives to several continuations of a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from medflare.models.backbone import autocast, scaled_logits
from medflare.models.padding import batches_by_length, pad_rows
from medflare.models.text_model import TextModel

TokenSequence = Sequence[int]


@torch.no_grad()
def log_likelihoods(
    model: TextModel,
    prompts: Sequence[TokenSequence],
    continuations: Sequence[Sequence[TokenSequence]],
    batch: int,
) -> list[list[float]]:
    """Return Σ log p of the tokens of every continuation of every prompt, with the adapter in use.

    A prompt is computed once for all its continuations; prompts of similar length share a batch. The result
    is that of computing each pair by itself, up to the rounding of the backbone's precision.

    Args:
        prompts: token ids, at least one each; continuations: of each prompt some, at least one token each.
        batch: prompts at once.
    """
    results: list[list[float]] = [[] for _ in prompts]
    with model.reading():
        for rows in batches_by_length(prompts, batch):
            sums = _of_batch(model, [prompts[i] for i in rows], [continuations[i] for i in rows])
            for i, values in zip(rows, sums, strict=True):
                results[i] = values
    return results


def _of_batch(
    model: TextModel, prompts: list[TokenSequence], continuations: list[Sequence[TokenSequence]]
) -> list[list[float]]:
    """Return `log_likelihoods` of prompts computed together, as many continuations at once as prompts."""
    states, mask, cache = model.read_rows(prompts)  # (N, T, hidden), (N, T)
    last = states[torch.arange(len(prompts), device=model.device), mask.sum(1) - 1][:, None]  # (N, 1, hidden)
    pairs = [(row, place) for row, several in enumerate(continuations) for place in range(len(several))]
    pairs.sort(key=lambda pair: len(continuations[pair[0]][pair[1]]))
    results = [[0.0] * len(several) for several in continuations]
    for start in range(0, len(pairs), len(prompts)):
        part = pairs[start : start + len(prompts)]
        rows = torch.tensor([row for row, _ in part], device=model.device)
        tails = [continuations[row][place] for row, place in part]
        sums = _continued(model, last[rows], mask[rows], _of_rows(cache, rows), tails)
        for (row, place), value in zip(part, sums, strict=True):
            results[row][place] = value
    return results


def _of_rows(cache: Any, rows: Tensor) -> Any:
    """Return the keys and values of these rows, which may repeat."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]  # what is chosen are new tensors
    for layer in chosen.layers:
        layer.batch_select_indices(rows.to(layer.keys.device))  # layers may lie on several
    return chosen


def _continued(
    model: TextModel, last: Tensor, mask: Tensor, cache: Any, tails: list[TokenSequence]
) -> list[float]:
    """Return Σ log p of each tail.

    Args:
        last: (N, 1, hidden) at the end of each prompt; mask: (N, T) of the prompts; cache: of the prompts.
    """
    ids, kept = pad_rows(tails, model.padding, model.device)  # (N, L)
    hidden = last
    if ids.shape[1] > 1:  # the state before a tail predicts its first token, so its last one is no input
        positions = mask.sum(1)[:, None] + torch.arange(ids.shape[1] - 1, device=model.device)  # (N, L - 1)
        visible = torch.cat([mask, kept[:, :-1]], 1)  # (N, T + L - 1)
        inner, _ = model.read(ids[:, :-1], visible, positions, cache)  # (N, L - 1, hidden)
        hidden = torch.cat([last, inner], 1)  # (N, L, hidden)
    sums: list[float] = _log_probabilities(model, hidden, ids, kept.bool()).tolist()
    return sums


def _log_probabilities(model: TextModel, hidden: Tensor, tails: Tensor, kept: Tensor) -> Tensor:
    """Return (N,) sums over the K tokens that are no padding; logits are computed for these alone."""
    backbone = model.backbone.model
    with autocast(model.backbone.precision, str(model.device)):
        logits = backbone.get_output_embeddings()(hidden[kept]).float()  # (K, vocabulary)
    log_probabilities = scaled_logits(logits, backbone.config).log_softmax(-1)
    of_tails = log_probabilities.gather(1, tails[kept][:, None])[:, 0]  # (K,)
    return torch.zeros(kept.shape, device=of_tails.device).masked_scatter(kept, of_tails).sum(1)
