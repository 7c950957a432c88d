# SPDX-License-Identifier: Apache-2.0
"""Order and batches of the training examples that a site visits in a round."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from medflare.core.plan import RoundPlan

T = TypeVar("T")


def derived_seed(*parts: object) -> int:
    """Return a seed in [0, 2^63) that depends on every part and on nothing else."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(slots=True)
class DataOrder:
    """Consecutive slices of a per-epoch shuffle: 2 % a round means 50 rounds are one epoch.

    `position` counts examples since the first round and is all that must survive a restart.
    """

    size: int
    seed: int
    position: int = 0

    def take(self, count: int) -> list[int]:
        """Return the next `count` positions in [0, size), passing into further epochs where needed."""
        taken: list[int] = []
        while len(taken) < count:
            epoch, start = divmod(self.position, self.size)
            order = np.random.default_rng(derived_seed(self.seed, epoch)).permutation(self.size)
            part = order[start : start + count - len(taken)]
            taken.extend(int(i) for i in part)
            self.position += len(part)
        return taken


def examples_to_visit(plan: RoundPlan, size: int, batch: int, epochs: int = 1) -> int:
    """Return the number of examples that a plan asks for: by its steps, else its fraction, else `epochs`.

    A fraction is at least one batch, or all examples of a site that has fewer.

    Args:
        size: training examples of the site; batch: examples of a mini-batch.
        epochs: passes over the data where the plan names neither steps nor a fraction.
    """
    if plan.steps is not None:
        return plan.steps * min(batch, size)
    if plan.fraction is None:
        return size * epochs
    return max(math.ceil(plan.fraction * size), min(batch, size))


def drawn(rows: Sequence[T], count: int, *seed: object) -> list[T]:
    """Return `count` of the rows, or all if there are fewer, without replacement, in their order."""
    if len(rows) <= count:
        return list(rows)
    chosen = np.random.default_rng(derived_seed("drawn", *seed)).choice(len(rows), count, replace=False)
    return [rows[i] for i in sorted(chosen.tolist())]


def batches(indices: list[int], lengths: list[int], batch: int, seed: int) -> list[list[int]]:
    """Cuts a round's examples into batches of similar report length, in random order.

    Sorting inside the slice halves the padding. A round longer than an epoch visits examples again: second
    visits are cut apart from first ones, so that no batch holds an image twice and contrasts it with itself.
    A trailing single example joins the batch before it, because a contrastive loss needs two.
    """
    seen: Counter[int] = Counter()
    ranked = []
    for index in indices:
        ranked.append((seen[index], lengths[index], index))
        seen[index] += 1
    ordered = [index for _, _, index in sorted(ranked)]
    cut = [ordered[start : start + batch] for start in range(0, len(ordered), batch)]
    if batch > 1 and len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2].extend(cut.pop())
    np.random.default_rng(seed).shuffle(cut)
    return cut
