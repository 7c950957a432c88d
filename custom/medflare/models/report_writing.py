# SPDX-License-Identifier: Apache-2.0
"""Greedy reports after embedded prefixes: the tokens of `generate` for less work.

Nothing is computed for padding, and a report that is done leaves its batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from medflare.models.backbone import scaled_logits
from medflare.models.fused_reading import FusedReader
from medflare.models.greedy_decoding import keep_rows


@torch.no_grad()
def write_after(
    reader: FusedReader, prefix: Tensor, present: Tensor, most: int, least: int, end: int
) -> list[list[int]]:
    """Return the tokens that follow each prefix, with the end mark where a report came to its end.

    Args:
        prefix: (B, P, hidden); present: (B, P) bool, false where a shorter one is padded at its left.
        most: tokens of a report, the end mark among them; least: those that stand before an end mark.
        end: the end mark.
    """
    written: list[list[int]] = [[] for _ in prefix]
    table = reader.model.get_input_embeddings()
    rows = torch.arange(len(prefix), device=prefix.device)
    seen, embedded, cache = present.long(), prefix, None
    positions = (seen.cumsum(1) - 1).clamp(min=0)  # (B, P)
    for count in range(1, most + 1):
        states, cache = reader.read_embedded(embedded, seen, positions, cache)
        chosen = _choose(reader.model, states[:, -1], None if count > least else end)  # (B',)
        for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
            written[row].append(token)
        going = chosen != end
        if not going.any():
            break
        if not going.all():
            seen = keep_rows(cache, seen, going.nonzero()[:, 0].tolist())
            rows, chosen = rows[going], chosen[going]
        positions = seen.sum(1, keepdim=True)
        seen = torch.cat([seen, seen.new_ones(len(rows), 1)], 1)
        embedded = table(chosen[:, None])
    return written


def _choose(model: Any, states: Tensor, barred: int | None) -> Tensor:
    """Return the likeliest token after each state (B, hidden), other than `barred`."""
    logits = scaled_logits(model.get_output_embeddings()(states).float(), model.config)  # (B, vocabulary)
    if barred is not None:
        logits[:, barred] = -torch.inf
    return logits.argmax(-1)
