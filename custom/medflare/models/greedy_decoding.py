# SPDX-License-Identifier: Apache-2.0
"""Greedy answers of a language model, the tokens of `generate` for less work.

What all prompts begin with is read once, an answer that is done leaves its batch, and tokens that a guide
foresees are checked together in one pass (speculative decoding, Leviathan et al. 2023, with a guide in place
of the small model) instead of written one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.backbone import autocast, scaled_logits
from medflare.models.padding import batches_by_length, pad_rows
from medflare.models.text_backbone import TextBackbone


class Guide(Protocol):
    """Constraint on one answer before it is written. States are values; the first is `start`."""

    @property
    def start(self) -> Hashable:
        """The state before the first token."""

    def draft(self, state: Any, first: bool) -> list[int]:
        """Return tokens that probably come next; `first` says that the prompt is read in the same pass."""

    def allowed(self, state: Any) -> Collection[int] | None:
        """Return the tokens that may come next, at least one; None for all."""

    def after(self, state: Any, token: int) -> Hashable:
        """Return the state after one more token."""

    def ending(self, state: Any) -> list[int]:
        """Return the tokens that end an answer whose budget is used up, [] where that is not possible."""


class NoGuide:
    """Nothing is known: every token is the model's, one by one."""

    start = None

    def draft(self, state: None, first: bool) -> list[int]:
        return []

    def allowed(self, state: None) -> None:
        return None

    def after(self, state: None, token: int) -> None:
        return None

    def ending(self, state: None) -> list[int]:
        return []


@dataclass(slots=True)
class _Answer:
    """An answer in the making.

    Attributes:
        unread: tokens that the model has not seen; at first those of the prompt.
        states: of the guide, before each token of `draft` and after the last one.
    """

    guide: Guide
    unread: list[int]
    budget: int
    state: Any
    draft: list[int] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    done: bool = False

    def foresee(self) -> None:
        """Draft the next tokens, one less than the budget has room for: the pass itself yields one more."""
        room = self.budget - len(self.tokens) - 1
        self.draft = self.guide.draft(self.state, not self.tokens)[:room] if room > 0 else []
        self.states = [self.state]
        for token in self.draft:
            self.states.append(self.guide.after(self.states[-1], token))

    def take(self, chosen: Sequence[int], end: int) -> int:
        """Take the draft as far as the model chose it, and one token more; return how far that was."""
        right = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self.draft, chosen, strict=False))))
        new = list(chosen[: right + 1])
        if end in new:
            new = new[: new.index(end) + 1]
            right = min(right, len(new))
        self.tokens += new
        self.state = self.guide.after(self.states[len(new) - 1], new[-1])
        self.unread = new[-1:]
        self.done = new[-1] == end
        if not self.done and len(self.tokens) >= self.budget:
            self.tokens += self.guide.ending(self.state)
            self.done = True
        return right


@torch.no_grad()
def write_greedily(
    model: TextBackbone,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    batch: int,
    guides: Sequence[Guide] | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, with the end mark where an answer came to its end.

    The model is in evaluation mode.

    Args:
        prompts: token ids, at least one each; budgets: most new tokens of each.
        batch: prompts of similar length computed at once.
        guides: of each prompt; None for none. An answer out of budget is completed by its guide.
    """
    given: Sequence[Guide] = [NoGuide() for _ in prompts] if guides is None else guides
    answers = [
        _Answer(guide, list(ids), min(budget, model.context - len(ids)), guide.start)
        for ids, budget, guide in zip(prompts, budgets, given, strict=True)
    ]
    for answer in answers:
        if answer.budget < 1:
            answer.tokens, answer.done = answer.guide.ending(answer.state), True
    open_ones = [answer for answer in answers if not answer.done]
    for rows in batches_by_length([answer.unread for answer in open_ones], batch):
        _write_batch(model, [open_ones[i] for i in rows])
    return [answer.tokens for answer in answers]


def _write_batch(model: TextBackbone, answers: list[_Answer]) -> None:
    """Write answers together, pass by pass; those that are done leave."""
    windowed = bool(getattr(model.backbone.model.config, "sliding_window", None))
    for answer in answers:
        answer.foresee()
    hidden, new, cache = model.read_rows([a.unread + a.draft for a in answers])  # (N, L, H), (N, L)
    seen = new[:, :0]  # (N, T): 0 for what was drafted in vain and for padding
    while True:
        read = [len(answer.unread) for answer in answers]
        for i, (answer, chosen) in enumerate(zip(answers, _choose(model, answers, hidden), strict=True)):
            new[i, read[i] + answer.take(chosen, model.end) :] = 0  # what was drafted in vain
        seen = torch.cat([seen, new], 1)
        left = [i for i, answer in enumerate(answers) if not answer.done]
        if not left:
            return
        if len(left) < len(answers) or windowed:  # a window counts slots, so none may be in vain
            answers = [answers[i] for i in left]
            seen = keep_rows(cache, seen, left)
        for answer in answers:
            answer.foresee()
        ids, new = pad_rows([a.unread + a.draft for a in answers], model.padding, model.device)  # (N, L)
        positions = seen.sum(1, keepdim=True) + (new.cumsum(1) - 1).clamp(min=0)  # (N, L)
        hidden, cache = model.read(ids, torch.cat([seen, new], 1), positions, cache)  # (N, L, H)


def keep_rows(cache: Any, seen: Tensor, rows: list[int]) -> Tensor:
    """Keep of a cache these rows, and of their slots those that are seen; return the mask of what is left.

    Slots before those of `seen` (N, T) are an adapter's virtual tokens and stay.
    """
    kept = seen[rows]  # (N', T)
    longest = int(kept.sum(1).max())
    order = kept.sort(dim=1, stable=True).indices[:, -longest:]  # (N', T'): seen slots last, in their order
    ahead = cache.get_seq_length() - seen.shape[1]
    slots = torch.cat([torch.arange(ahead, device=kept.device).expand(len(rows), -1), order + ahead], 1)
    chosen = torch.tensor(rows, device=kept.device)[:, None]  # (N', 1)
    keep_slots(cache, chosen, slots)
    return kept.gather(1, order)


def keep_slots(cache: Any, rows: Tensor, slots: Tensor) -> None:
    """Keep these rows (N', 1) of a cache and their slots (N', T'); its layers may lie on several devices."""
    for layer in cache.layers:
        place = layer.keys.device
        for name in ("keys", "values"):
            by_slot = getattr(layer, name).transpose(1, 2)  # (N, V + T, heads, size)
            setattr(layer, name, by_slot[rows.to(place), slots.to(place)].transpose(1, 2))


def _choose(model: TextBackbone, answers: Sequence[_Answer], hidden: Tensor) -> list[list[int]]:
    """Return of each answer the best allowed token after what was unread, and after each token of its draft.

    Logits are computed where they are needed; where guides name the allowed tokens, of these alone.
    """
    counts = [len(answer.states) for answer in answers]
    rows = [i for i, count in enumerate(counts) for _ in range(count)]
    places = [len(a.unread) - 1 + k for a, count in zip(answers, counts, strict=True) for k in range(count)]
    found = hidden[rows, places]  # (P, H)
    allowed = [answer.guide.allowed(state) for answer in answers for state in answer.states]
    backbone = model.backbone.model
    head = backbone.get_output_embeddings()
    with autocast(model.backbone.precision, str(model.device)):
        listed = [tokens for tokens in allowed if tokens is not None]
        if len(listed) == len(allowed):
            names = sorted({token for tokens in listed for token in tokens})
            bias = None if head.bias is None else head.bias[names]
            logits = F.linear(found, head.weight[names], bias).float()  # (P, U)
            column = {token: i for i, token in enumerate(names)}
            pairs = [(p, column[token]) for p, tokens in enumerate(listed) for token in tokens]
            open_ = torch.zeros_like(logits, dtype=torch.bool)
            open_[tuple(torch.tensor(pairs, device=model.device).T)] = True
            logits = scaled_logits(logits, backbone.config).masked_fill(~open_, -torch.inf)
            best = [names[i] for i in logits.argmax(-1).tolist()]
        else:
            best = scaled_logits(head(found).float(), backbone.config).argmax(-1).tolist()
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [best[start : start + count] for start, count in zip(starts, counts, strict=True)]
